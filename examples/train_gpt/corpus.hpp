// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Training and held-out bytes read from a file or a folder, and the batches drawn from them.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace train_gpt {

//! Text split into training and held-out bytes. From a folder, a tenth of the files is held out,
//! chosen by a hash of their relative paths; from a single file, its last tenth. Hidden and binary
//! files of a folder are passed over. The same tree gives the same split on every machine.
class corpus {
 public:
  //! Throws usage_error if `path` cannot be read.
  explicit corpus(std::filesystem::path const& path);

  [[nodiscard]] std::span<std::uint8_t const> training() const noexcept { return training_; }
  [[nodiscard]] std::span<std::uint8_t const> held_out() const noexcept { return held_out_; }
  [[nodiscard]] std::size_t files() const noexcept { return files_; }

  //! A hash of both parts.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept;

 private:
  void read_folder(std::filesystem::path const& path);
  void read_single(std::filesystem::path const& path);

  std::vector<std::uint8_t> training_, held_out_;
  std::size_t files_ = 0;
};

//! One batch: `inputs` and `targets` hold rows * context bytes, targets shifted by one.
struct batch {
  batch(std::int64_t rows, std::int64_t context);

  std::int64_t context;
  std::vector<std::uint8_t> inputs, targets;

  //! Copies the context + 1 bytes of `text` from `start` on into row `row`.
  void set_row(std::int64_t row, std::span<std::uint8_t const> text, std::int64_t start);
};

//! Fills `b` with windows at random positions: a pure function of (seed, step, rank, row), so that
//! a resumed run continues with the batches it would have seen.
void sample(batch& b, std::span<std::uint8_t const> text, std::uint64_t seed, std::int64_t step,
            std::int64_t rank);

//! Fills `b` with batch number `index` of `count`, which together spread evenly over `text`.
void take_spread(batch& b, std::span<std::uint8_t const> text, std::int64_t index,
                 std::int64_t count);

}  // namespace train_gpt
