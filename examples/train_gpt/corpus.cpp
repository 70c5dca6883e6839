// SPDX-License-Identifier: Apache-2.0
#include "corpus.hpp"

#include <algorithm>
#include <utility>

#include "files.hpp"
#include "random.hpp"
#include "usage_error.hpp"

namespace train_gpt {
namespace {

namespace fs = std::filesystem;
using bytes = std::vector<std::uint8_t>;

bytes read_bytes(fs::path const& path) {
  std::string const content = read_file(path);
  return {content.begin(), content.end()};
}

void append(bytes& to, bytes const& from) { to.insert(to.end(), from.begin(), from.end()); }

// Relative paths of the regular, not hidden files below `root`, in the order of a hash of the path.
std::vector<std::string> list_files(fs::path const& root) {
  std::vector<std::pair<std::uint64_t, std::string>> found;
  for (fs::recursive_directory_iterator at(root), end; at != end; ++at) {
    if (at->path().filename().string().starts_with('.')) {
      at.disable_recursion_pending();
    } else if (at->is_regular_file()) {
      auto name = at->path().lexically_relative(root).generic_string();
      auto const hash = mix(fnv1a(std::as_bytes(std::span(name))));
      found.emplace_back(hash, std::move(name));
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& [hash, name] : found) names.push_back(std::move(name));
  return names;
}

}  // namespace

corpus::corpus(fs::path const& path) {
  try {
    if (!fs::exists(path)) throw usage_error("does not exist");
    if (fs::is_directory(path)) {
      read_folder(path);
    } else {
      read_single(path);
    }
  } catch (std::exception const& e) {
    throw usage_error("corpus '" + path.string() + "': " + e.what());
  }
}

void corpus::read_folder(fs::path const& path) {
  std::vector<bytes> texts;
  for (auto const& name : list_files(path)) {
    auto content = read_bytes(path / name);
    bool const binary = std::find(content.begin(), content.end(), 0) != content.end();
    if (!binary && !content.empty()) texts.push_back(std::move(content));
  }
  files_ = texts.size();
  std::size_t const held_out = files_ < 2 ? 0 : std::max<std::size_t>(1, files_ / 10);
  for (std::size_t i = 0; i < files_; ++i) append(i < held_out ? held_out_ : training_, texts[i]);
}

void corpus::read_single(fs::path const& path) {
  training_ = read_bytes(path);
  files_ = 1;
  auto const cut = training_.end() - static_cast<std::ptrdiff_t>(training_.size() / 10);
  held_out_.assign(cut, training_.end());
  training_.erase(cut, training_.end());
}

std::uint64_t corpus::fingerprint() const noexcept {
  return fnv1a(std::as_bytes(held_out()), fnv1a(std::as_bytes(training())));
}

batch::batch(std::int64_t rows, std::int64_t context_length)
    : context(context_length),
      inputs(static_cast<std::size_t>(rows * context_length)),
      targets(inputs.size()) {}

void batch::set_row(std::int64_t row, std::span<std::uint8_t const> text, std::int64_t start) {
  auto const from = text.begin() + start;
  std::copy_n(from, context, inputs.begin() + row * context);
  std::copy_n(from + 1, context, targets.begin() + row * context);
}

void sample(batch& b, std::span<std::uint8_t const> text, std::uint64_t seed, std::int64_t step,
            std::int64_t rank) {
  std::int64_t const rows = std::ssize(b.inputs) / b.context;
  auto const positions = static_cast<double>(std::ssize(text) - b.context);
  for (std::int64_t row = 0; row < rows; ++row) {
    auto const place =
        mix(mix(static_cast<std::uint64_t>(step)) + static_cast<std::uint64_t>(rank)) +
        static_cast<std::uint64_t>(row);
    b.set_row(row, text, static_cast<std::int64_t>(uniform(seed, place) * positions));
  }
}

void take_spread(batch& b, std::span<std::uint8_t const> text, std::int64_t index,
                 std::int64_t count) {
  std::int64_t const rows = std::ssize(b.inputs) / b.context;
  std::int64_t const last = std::ssize(text) - b.context - 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    b.set_row(row, text, last * (index * rows + row) / std::max<std::int64_t>(1, count * rows - 1));
  }
}

}  // namespace train_gpt
