// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A training's checkpoints as files in a folder: one file per rank and step, each either complete
//! or not there, whatever happens while it is written.

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <istream>
#include <map>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <scape/context/host.hpp>
#include <scape/detail/checkpoint.hpp>
#include <scape/detail/host/durable_file.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>

namespace scape {

//! The files of all ranks of one step.
struct checkpoint_set {
  std::int64_t step = 0;
  int ranks = 0;
  friend bool operator==(checkpoint_set const&, checkpoint_set const&) = default;
  //! Older first.
  friend bool operator<(checkpoint_set const& a, checkpoint_set const& b) noexcept {
    return a.step != b.step ? a.step < b.step : a.ranks < b.ranks;
  }
};

//! A folder that all ranks see, on one machine or on a shared file system.
//!
//! A file "step-<s>.rank-<p>-of-<P>.scape" holds this rank's shard of the weights (the text
//! "scapewts", three 64-bit words n, begin and count, the floats, and the FNV-1a hash of all
//! before it), then the optimizer's state (detail/checkpoint.hpp). A set is complete when the files
//! of all its ranks are there; a rank that dies while it saves leaves the set before untouched.
class checkpoint_directory {
 public:
  //! Keeps the newest `keep` complete sets, at least 1.
  explicit checkpoint_directory(std::filesystem::path folder, int keep = 2)
      : folder_(std::move(folder)), keep_(keep) {
    detail::expect(keep >= 1, "checkpoint_directory",
                   [&] { return "keep is " + std::to_string(keep) + ", expected 1 or more"; });
  }

  //! Writes this rank's file of the optimizer's step and deletes this rank's files of sets that are
  //! no longer kept. Call it on every rank after the same step; no rank waits for another. Throws
  //! checkpoint_error, also where a complete set of a later step is there, which can only be
  //! another training's; the older files are still there then.
  template <class Optimizer>
  void save(host_context const& ctx, Optimizer& optimizer, std::span<float const> weights) {
    auto const& l = optimizer.parameters();
    detail::caller const who{"checkpoint_directory::save", optimizer.rank(), l.shards()};
    detail::expect_equal(who, "the length of weights", std::ssize(weights), l.size());
    checkpoint_set const now{optimizer.steps(), l.shards()};
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) {
      detail::fail_checkpoint(who, "cannot write '" + folder_.string() + "': " + error.message());
    }
    detail::write_durably(who, path(now, optimizer.rank()), [&](std::ostream& out) {
      write_weights(who, out, l, weights);
      optimizer.save(ctx, out);
    });
    auto const complete = sets();
    if (!complete.empty() && now.step < complete.back().step) {
      detail::fail_checkpoint(
          who, "the folder holds a later set, of step " + std::to_string(complete.back().step) +
                   ", which this training has not loaded; load it, or use a folder of its own");
    }
    auto const kept = std::min(std::ssize(complete), std::ptrdiff_t{keep_});
    if (kept == 0) return;
    auto const oldest = complete[complete.size() - static_cast<std::size_t>(kept)];
    discard(optimizer.rank(), now.ranks, [&](checkpoint_set const& set) { return set < oldest; });
  }

  //! Restores weights and optimizer from the newest complete set, whatever its number of ranks:
  //! returns it, or nothing if there is none. Call it on every rank. Throws checkpoint_error; the
  //! weights may have changed then, the optimizer has not.
  template <class Optimizer>
  std::optional<checkpoint_set> load(host_context const& ctx, Optimizer& optimizer,
                                     std::span<float> weights) {
    auto const& l = optimizer.parameters();
    detail::caller const who{"checkpoint_directory::load", optimizer.rank(), l.shards()};
    detail::expect_equal(who, "the length of weights", std::ssize(weights), l.size());
    auto const set = newest();
    // What an ended run left of later sets shall not be completed by this one.
    discard(optimizer.rank(), l.shards(),
            [&](checkpoint_set const& other) { return !set || *set < other; });
    if (!set) return std::nullopt;
    bool const same_ranks = set->ranks == l.shards();
    std::vector<std::ifstream> states;  // all open at once, so no more than are needed
    std::int64_t begin = 0;
    for (int p = 0; p < set->ranks; ++p) {
      std::ifstream in(path(*set, p), std::ios::binary);
      if (!in) {
        auto const why = std::generic_category().message(errno);
        detail::fail_checkpoint(who, "cannot read '" + path(*set, p).string() + "': " + why);
      }
      begin = read_weights(who, in, begin, weights);
      if (!same_ranks || p == optimizer.rank()) states.push_back(std::move(in));
    }
    detail::expect_same(who, "the number of weights", static_cast<std::uint64_t>(begin),
                        weights.size());
    if (same_ranks) {
      optimizer.load(ctx, states.front());
    } else {
      std::vector<std::istream*> files(states.size());
      std::ranges::transform(states, files.begin(), [](auto& in) { return &in; });
      optimizer.load(ctx, std::span<std::istream* const>(files));
    }
    return set;
  }

  //! The newest set that is complete, if any.
  [[nodiscard]] std::optional<checkpoint_set> newest() const {
    auto const all = sets();
    if (all.empty()) return std::nullopt;
    return all.back();
  }
  //! All complete sets, oldest first.
  [[nodiscard]] std::vector<checkpoint_set> sets() const {
    std::vector<checkpoint_set> result;
    for (auto const& [set, ranks] : files()) {
      if (std::ssize(ranks) == set.ranks) result.push_back(set);
    }
    return result;
  }

  [[nodiscard]] std::filesystem::path path(checkpoint_set const& set, int rank) const {
    return folder_ / ("step-" + std::to_string(set.step) + ".rank-" + std::to_string(rank) +
                      "-of-" + std::to_string(set.ranks) + ".scape");
  }

 private:
  static constexpr std::array<char, 8> magic = {'s', 'c', 'a', 'p', 'e', 'w', 't', 's'};

  //! The ranks whose files are there, by set.
  [[nodiscard]] std::map<checkpoint_set, std::vector<int>> files() const {
    std::map<checkpoint_set, std::vector<int>> result;
    std::error_code none;
    for (auto const& entry : std::filesystem::directory_iterator(folder_, none)) {
      auto const name = entry.path().filename().string();
      std::string_view rest = name;
      checkpoint_set set;
      int rank = -1;
      if (take(rest, "step-", set.step) && take(rest, ".rank-", rank) &&
          take(rest, "-of-", set.ranks) && rank >= 0 && rank < set.ranks &&
          name == path(set, rank).filename()) {
        result[set].push_back(rank);
      }
    }
    return result;
  }
  //! Deletes the rank's files of some sets; rank 0 also those of ranks that are no more.
  template <class Which>
  void discard(int own, int ranks_now, Which const& which) const {
    for (auto const& [set, ranks] : files()) {
      if (!which(set)) continue;
      for (auto const rank : ranks) {
        std::error_code ignored;  // the next save tries again
        if (rank == own || (own == 0 && rank >= ranks_now)) {
          std::filesystem::remove(path(set, rank), ignored);
        }
      }
    }
  }
  template <class Integer>
  static bool take(std::string_view& text, std::string_view prefix, Integer& number) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
  }

  static void write_weights(detail::caller who, std::ostream& out, layout const& l,
                            std::span<float const> weights) {
    auto const begin = l.begin(who.rank), count = l.shard_size(who.rank);
    auto const own =
        weights.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
    detail::hashing_writer to(who, out);
    to.write(magic);
    to.write(std::array{l.size(), begin, count});
    to.write(own);
    to.end();
  }

  //! Reads the shard that begins at `begin` and returns where it ends.
  static std::int64_t read_weights(detail::caller who, std::istream& in, std::int64_t begin,
                                   std::span<float> weights) {
    detail::hashing_reader from(who, in);
    if (from.value(std::array<char, 8>{}) != magic) {
      from.fail("this is not a checkpoint of weights");
    }
    auto const [n, first, count] = from.value(std::array<std::int64_t, 3>{});
    from.expect_same("n", static_cast<std::uint64_t>(n), weights.size());
    from.expect_same("the first weight", static_cast<std::uint64_t>(first),
                     static_cast<std::uint64_t>(begin));
    if (count < 0 || count > n - first) {
      from.fail("the number of weights is wrong; the file is damaged");
    }
    from.read(std::as_writable_bytes(
        weights.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))));
    from.end();
    return first + count;
  }

  std::filesystem::path folder_;
  int keep_;
};

}  // namespace scape
