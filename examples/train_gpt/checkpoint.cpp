// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "files.hpp"
#include "random.hpp"
#include "usage_error.hpp"

namespace train_gpt {
namespace {

constexpr std::string_view magic = "scape train_gpt checkpoint 2\n";

std::uint64_t hash(std::string_view text) { return fnv1a(std::as_bytes(std::span(text))); }

// Lengths and raw elements, one after the other.
class writer {
 public:
  template <class Elements>
  void add(Elements const& elements) {
    static_assert(std::is_trivially_copyable_v<typename Elements::value_type>);
    add_number(elements.size());
    auto const raw = std::as_bytes(std::span(elements));
    content_.append(reinterpret_cast<char const*>(raw.data()), raw.size());
  }
  void add_number(std::uint64_t number) {
    content_.append(reinterpret_cast<char const*>(&number), sizeof(number));
  }
  [[nodiscard]] std::string const& content() const noexcept { return content_; }

 private:
  std::string content_{magic};
};

class reader {
 public:
  explicit reader(std::string_view content) : rest_(content) {}

  template <class Elements>
  void get(Elements& elements) {
    using element = typename Elements::value_type;
    std::uint64_t const count = number();
    if (count > rest_.size() / sizeof(element)) throw usage_error("a length is wrong");
    elements.resize(count);
    if (count > 0)
      std::memcpy(elements.data(), take(count * sizeof(element)).data(), count * sizeof(element));
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }

 private:
  std::string_view take(std::size_t count) {
    if (count > rest_.size()) throw usage_error("it ends early");
    auto const taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::string_view rest_;
};

// "steps is 200 there and 300 here", for the first line in which the two differ.
std::string first_difference(std::string const& there, std::string const& here) {
  std::istringstream a(there), b(here);
  std::string line_a, line_b;
  do {
    std::getline(a, line_a);
    std::getline(b, line_b);
  } while (a && b && line_a == line_b);
  auto const value = [](std::string const& line) { return line.substr(line.find('=') + 1); };
  return line_a.substr(0, line_a.find('=')) + " is " + value(line_a) + " there and " +
         value(line_b) + " here";
}

checkpoint parse(std::string_view content, std::string const& settings) {
  if (!content.starts_with(magic) || content.size() < magic.size() + sizeof(std::uint64_t)) {
    throw usage_error("it is no checkpoint of this program");
  }
  auto const body = content.substr(0, content.size() - sizeof(std::uint64_t));
  if (reader(content.substr(body.size())).number() != hash(body)) {
    throw usage_error("it is damaged, its checksum is wrong");
  }
  reader in(body.substr(magic.size()));
  checkpoint c;
  in.get(c.settings);
  if (c.settings != settings) throw usage_error(first_difference(c.settings, settings));
  c.step = static_cast<std::int64_t>(in.number());
  in.get(c.weights);
  auto const ranks = in.number();
  if (ranks > body.size()) throw usage_error("a length is wrong");
  c.optimizer_states.resize(ranks);
  for (auto& state : c.optimizer_states) in.get(state);
  in.get(c.steps);
  in.get(c.validation);
  std::vector<double> milliseconds;
  in.get(milliseconds);
  if (milliseconds.size() != c.milliseconds.size()) throw usage_error("a length is wrong");
  std::copy_n(milliseconds.begin(), c.milliseconds.size(), c.milliseconds.begin());
  return c;
}

}  // namespace

void write_checkpoint(std::filesystem::path const& path, checkpoint const& c) {
  writer out;
  out.add(c.settings);
  out.add_number(static_cast<std::uint64_t>(c.step));
  out.add(c.weights);
  out.add_number(c.optimizer_states.size());
  for (auto const& state : c.optimizer_states) out.add(state);
  out.add(c.steps);
  out.add(c.validation);
  out.add(c.milliseconds);
  out.add_number(hash(out.content()));
  write_atomically(path, out.content());
}

checkpoint read_checkpoint(std::filesystem::path const& path, std::string const& settings) {
  try {
    return parse(read_file(path), settings);
  } catch (std::runtime_error const& e) {
    throw usage_error("cannot resume from '" + path.string() + "': " + e.what());
  }
}

}  // namespace train_gpt
