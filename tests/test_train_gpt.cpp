// SPDX-License-Identifier: Apache-2.0

//! @file
//! The parts of the example train_gpt: gradients, corpus, batches, schedule, checkpoint, charts.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "chart.hpp"
#include "checkpoint.hpp"
#include "corpus.hpp"
#include "files.hpp"
#include "gpt.hpp"
#include "gpt_definitions.hpp"
#include "options.hpp"
#include "random.hpp"
#include "usage_error.hpp"

namespace {

namespace fs = std::filesystem;
using namespace train_gpt;

// A folder that is gone at the end of the test.
class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (fs::temp_directory_path() / "train_gpt_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder() { fs::remove_all(path_); }

  void write(std::string const& name, std::string const& content) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  [[nodiscard]] fs::path const& path() const { return path_; }

 private:
  fs::path path_;
};

options parse(std::vector<char const*> arguments, std::optional<int> processes = {}) {
  arguments.insert(arguments.begin(), "train_gpt");
  return parse_options(static_cast<int>(arguments.size()), arguments.data(), processes);
}

std::string message_of(std::vector<char const*> const& arguments,
                       std::optional<int> processes = {}) {
  try {
    parse(arguments, processes);
  } catch (usage_error const& e) {
    return e.what();
  }
  return {};
}

std::vector<std::uint8_t> random_bytes(std::int64_t count, std::uint64_t seed) {
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::uint8_t>(mix(seed + static_cast<std::uint64_t>(i))));
  }
  return bytes;
}

template <class T>
std::vector<T> test_parameters(gpt_shape const& shape) {
  auto const initial = initial_parameters(shape, 3);
  std::vector<T> parameters(initial.begin(), initial.end());
  // Away from the initial values, where biases and attention scores are all but 0.
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i] =
        T(5) * parameters[i] / T(1 + 4 * (parameters[i] == T(1))) + T(0.2) * T(uniform(9, i) - 0.5);
  }
  return parameters;
}

}  // namespace

TEST_CASE("the tensors cover the parameters without gaps") {
  for (bool const tied : {true, false}) {
    gpt_shape const shape{.layers = 3, .width = 12, .heads = 2, .context = 7, .tied = tied};
    std::int64_t end = 0;
    for (auto const& t : parameter_tensors(shape)) {
      CHECK(t.offset == end);
      CHECK(t.length > 0);
      CHECK(t.one_dimensional == (t.name.ends_with(".bias") || t.name.ends_with(".gain")));
      end += t.length;
    }
    CHECK(end == parameter_count(shape));
  }
  CHECK(parameter_count(gpt_shape{}) == 120576);
}

TEST_CASE("gradients agree with central differences") {
  for (bool const tied : {true, false}) {
    gpt_shape const shape{.layers = 2, .width = 8, .heads = 2, .context = 5, .tied = tied};
    std::int64_t const rows = 2;
    auto parameters = test_parameters<double>(shape);
    auto const inputs = random_bytes(rows * shape.context, 1);
    auto const targets = random_bytes(rows * shape.context, 2);
    gpt<double> model(shape, rows);
    std::vector<double> gradient(parameters.size(), 99.0);
    double const loss = model.loss_and_gradient(parameters, inputs, targets, gradient);
    CHECK(loss == model.loss(parameters, inputs, targets));

    for (auto const& t : parameter_tensors(shape)) {
      CAPTURE(t.name);
      double largest = 0, error = 0;
      for (std::int64_t k = 0; k < std::min<std::int64_t>(t.length, 24); ++k) {
        // Token embeddings: rows of bytes that occur, and some that do not.
        auto const i = static_cast<std::size_t>(
            t.offset + (t.name == "token_embedding" && k < 16
                            ? inputs[static_cast<std::size_t>(k) % 4] * shape.width + k % 8
                            : k * t.length / std::min<std::int64_t>(t.length, 24)));
        double const kept = parameters[i], h = 1e-5;
        parameters[i] = kept + h;
        double const above = model.loss(parameters, inputs, targets);
        parameters[i] = kept - h;
        double const below = model.loss(parameters, inputs, targets);
        parameters[i] = kept;
        largest = std::max(largest, std::abs(gradient[i]));
        error = std::max(error, std::abs(gradient[i] - (above - below) / (2 * h)));
      }
      CHECK(largest > 1e-4);
      CHECK(error < 1e-7 * largest + 1e-9);
    }
  }
}

TEST_CASE("a model in parts is the whole model, bit for bit, with several batches under way") {
  gpt_shape const shape{.layers = 2, .width = 16, .heads = 2, .context = 6, .tied = false};
  std::int64_t const rows = 2;
  std::array<gpt_cut, 4> const cuts = {
      {{true, 0, 0, false}, {false, 0, 1, false}, {false, 1, 2, false}, {false, 2, 2, true}}};
  auto const values = test_parameters<float>(shape);
  aligned_vector<float> const parameters(values.begin(), values.end());
  std::vector<gpt_part<float>> parts;
  std::vector<std::span<float const>> part_parameters;
  std::int64_t end = 0;
  for (auto const& cut : cuts) {
    parts.emplace_back(shape, cut, rows, 2);
    auto const range = parameters_of(shape, cut);
    CHECK(range.begin == end);
    end = range.end;
    part_parameters.push_back(std::span(parameters)
                                  .subspan(static_cast<std::size_t>(range.begin),
                                           static_cast<std::size_t>(range.end - range.begin)));
  }
  CHECK(end == parameter_count(shape));
  CHECK(parts[0].slot_bytes() == 0);
  CHECK(parts[1].slot_bytes() == parts[2].slot_bytes());

  auto const stream = static_cast<std::size_t>(parts[0].stream_size());
  std::array<std::vector<std::uint8_t>, 2> inputs, targets;
  std::array<float, 2> losses = {};
  for (std::size_t batch = 0; batch < 2; ++batch) {
    inputs[batch] = random_bytes(rows * shape.context, 10 + batch);
    targets[batch] = random_bytes(rows * shape.context, 20 + batch);
    aligned_vector<float> in, out(stream);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      losses[batch] =
          parts[i].forward(batch, part_parameters[i], inputs[batch], targets[batch], in, out);
      in = out;
    }
  }
  gpt<float> model(shape, rows);
  for (std::size_t batch = 0; batch < 2; ++batch) {
    aligned_vector<float> whole_gradient(parameters.size());
    CHECK(losses[batch] ==
          model.loss_and_gradient(parameters, inputs[batch], targets[batch], whole_gradient));
    aligned_vector<float> out_gradient(stream), in_gradient(stream), gradient;
    for (std::size_t i = parts.size(); i-- > 0;) {
      aligned_vector<float> part(part_parameters[i].size(), 99.0F);
      parts[i].backward(batch, part_parameters[i], inputs[batch], targets[batch], out_gradient,
                        in_gradient, part);
      out_gradient = in_gradient;
      gradient.insert(gradient.begin(), part.begin(), part.end());
    }
    CHECK(gradient == whole_gradient);
  }
}

TEST_CASE("a tied model is not cut") {
  CHECK_THROWS_AS((gpt_part<float>(gpt_shape{}, {true, 0, 1, false}, 1)), std::invalid_argument);
}

TEST_CASE("float and double models agree") {
  gpt_shape const shape{.layers = 1, .width = 16, .heads = 4, .context = 9};
  auto const inputs = random_bytes(3 * shape.context, 5);
  auto const targets = random_bytes(3 * shape.context, 6);
  auto const wide = test_parameters<double>(shape);
  std::vector<float> const narrow(wide.begin(), wide.end());
  std::vector<double> wide_gradient(wide.size());
  std::vector<float> narrow_gradient(wide.size());
  double const loss = gpt<double>(shape, 3).loss_and_gradient(wide, inputs, targets, wide_gradient);
  CHECK(gpt<float>(shape, 3).loss_and_gradient(narrow, inputs, targets, narrow_gradient) ==
        doctest::Approx(loss).epsilon(1e-5));
  double error = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    error = std::max(error, std::abs(wide_gradient[i] - static_cast<double>(narrow_gradient[i])));
  }
  CHECK(error < 1e-5);
}

TEST_CASE("a prediction does not see the future") {
  gpt_shape const shape{.layers = 2, .width = 8, .heads = 2, .context = 6};
  auto const parameters = test_parameters<double>(shape);
  auto const targets = random_bytes(shape.context, 2);
  auto other_targets = targets;
  other_targets[3] ^= 1U;
  gpt<double> model(shape, 1);
  // Two losses that differ in the target of place 3 only: the difference is that of two logits
  // there.
  auto const at_place_3 = [&](std::vector<std::uint8_t> const& inputs) {
    return model.loss(parameters, inputs, targets) - model.loss(parameters, inputs, other_targets);
  };
  auto inputs = random_bytes(shape.context, 1);
  double const before = at_place_3(inputs);
  inputs[4] ^= 1U;
  inputs[5] ^= 1U;
  CHECK(at_place_3(inputs) == doctest::Approx(before).epsilon(1e-12));
  inputs[3] ^= 1U;
  CHECK(std::abs(at_place_3(inputs) - before) > 1e-6);
}

TEST_CASE("initial parameters depend on shape and seed alone") {
  gpt_shape const shape{.layers = 1, .width = 32, .heads = 2, .context = 8};
  auto const parameters = initial_parameters(shape, 1);
  CHECK(parameters == initial_parameters(shape, 1));
  CHECK(parameters != initial_parameters(shape, 2));
  double squares = 0;
  std::int64_t const embedding = vocabulary * shape.width;
  for (std::int64_t i = 0; i < embedding; ++i) {
    squares += std::pow(static_cast<double>(parameters[static_cast<std::size_t>(i)]), 2);
  }
  CHECK(std::sqrt(squares / static_cast<double>(embedding)) == doctest::Approx(0.02).epsilon(0.02));
}

TEST_CASE("a folder is split by files, a file by place") {
  temporary_folder const folder;
  for (int i = 0; i < 30; ++i) {
    folder.write("text/" + std::to_string(i % 3) + "/" + std::to_string(i),
                 std::string(100, static_cast<char>('A' + i)));
  }
  folder.write("text/.git/object", "hidden");
  folder.write("text/binary", std::string("a\0b", 3));
  corpus const text(folder.path() / "text");
  CHECK(text.files() == 30);
  CHECK(text.held_out().size() == 300);
  CHECK(text.training().size() == 2700);
  for (auto const byte : text.held_out()) {
    CHECK(std::ranges::find(text.training(), byte) == text.training().end());
  }
  CHECK(text.fingerprint() == corpus(folder.path() / "text").fingerprint());

  folder.write("single", std::string(90, 'a') + std::string(10, 'b'));
  corpus const single(folder.path() / "single");
  CHECK(single.training().size() == 90);
  CHECK(std::ranges::count(single.held_out(), 'b') == 10);
  CHECK(single.fingerprint() != text.fingerprint());

  CHECK_THROWS_AS(corpus(folder.path() / "absent"), usage_error);
}

TEST_CASE("batches are functions of seed, step and rank") {
  auto const text = random_bytes(1000, 7);
  batch a(4, 16), b(4, 16);
  sample(a, text, 1, 5, 2);
  sample(b, text, 1, 5, 2);
  CHECK(a.inputs == b.inputs);
  CHECK(a.targets == b.targets);
  CHECK(std::equal(a.inputs.begin() + 1, a.inputs.begin() + 16, a.targets.begin()));
  for (auto const [seed, step, rank] : {std::array{2, 5, 2}, {1, 6, 2}, {1, 5, 3}}) {
    sample(b, text, static_cast<std::uint64_t>(seed), step, rank);
    CHECK(a.inputs != b.inputs);
  }
  batch smallest(2, 16);
  sample(smallest, std::span(text).first(17), 1, 0, 0);
  CHECK(std::equal(smallest.targets.begin(), smallest.targets.begin() + 16, text.begin() + 1));

  take_spread(a, text, 0, 3);
  CHECK(std::equal(a.inputs.begin(), a.inputs.begin() + 16, text.begin()));
  take_spread(a, text, 2, 3);
  CHECK(std::equal(a.targets.end() - 16, a.targets.end(), text.end() - 16));
}

TEST_CASE("the command line spells out the runs") {
  auto const suite = parse({"--steps", "1000"});
  REQUIRE(suite.runs.size() == 4);
  CHECK(suite.runs[0].name == "dense-adamw");
  CHECK(suite.runs[1].name == "dense-adams");
  CHECK(suite.runs[2].name == "scape-adams-90");
  CHECK(suite.runs[2].ramp == 0);
  CHECK(suite.runs[3].name == "scape-adams-99");
  CHECK(suite.runs[3].ramp == 250);
  CHECK(suite.runs[3].lr == suite.runs[1].lr);
  CHECK(suite.device == device_kind::host);

  auto const seeds = parse({"--suite", "quality", "--seed", "5", "--seeds", "2"});
  REQUIRE(seeds.runs.size() == 8);
  CHECK(seeds.runs[3].name == "scape-adams-90-literal");
  CHECK(seeds.runs[7].stem() == "scape-adams-90-literal-seed6");

  auto const single = parse({"--optimizer", "scape-adamw", "--density", "0.05", "--lr", "1e-3"});
  REQUIRE(single.runs.size() == 1);
  CHECK(single.runs[0].label == "SCAPE-AdamW 95 %");
  CHECK(single.runs[0].lr == 1e-3);

  auto const literal =
      parse({"--optimizer", "scape-adams", "--preset", "literal", "--wire", "bf16"});
  CHECK(literal.runs[0].preset == sparse_preset::literal);
  CHECK(literal.wire == wire_type::bf16);

  CHECK(message_of({"--heads", "5"}) == "--heads 5 does not divide --width 64");
  CHECK(message_of({"--optimizer", "scape-adams", "--density", "1.5"}) ==
        "--density is 1.5, expected a value in [0, 1]");
  CHECK(message_of({"--ranks", "0"}) == "--ranks is 0, expected a value in [1, 1024]");
  CHECK(message_of({"--device", "cuda", "--ranks", "1024"}).starts_with("--device cuda: "));
  CHECK(parse({}, 3).ranks == 3);
  CHECK(parse({}, 3).comm == comm_kind::mpi);
  CHECK(message_of({"--ranks", "3"}, 3).empty());
  CHECK(message_of({"--ranks", "4"}, 3)
            .starts_with("--comm mpi: --ranks is 4, the number of processes 3"));
  CHECK(message_of({"--device", "cuda"}, 1) == "--device cuda needs --comm threads");
  CHECK(message_of({"--seeds", "-1"}).starts_with("--seeds is"));
  CHECK(message_of({"--lag", "2000000000"}).starts_with("--lag is"));
  CHECK(message_of({"--steps", "99999999999999999999"}).starts_with("--steps"));
  CHECK(message_of({"--weight-decay", "inf"}).starts_with("--weight-decay is inf"));
  CHECK(message_of({"--steps", "many"}).find("--steps") != std::string::npos);
  CHECK(message_of({"--nonsense"}).find("--nonsense") != std::string::npos);
}

TEST_CASE("the learning rate rises, and falls to a tenth") {
  auto const o = parse({"--optimizer", "dense-adams", "--steps", "100", "--lr", "1"});
  CHECK(o.learning_rate(o.runs[0], 0) == doctest::Approx(0.125));
  CHECK(o.learning_rate(o.runs[0], 7) == doctest::Approx(1));
  CHECK(o.learning_rate(o.runs[0], 8) == doctest::Approx(1));
  CHECK(o.learning_rate(o.runs[0], 54) == doctest::Approx(0.55));
  CHECK(o.learning_rate(o.runs[0], 99) == doctest::Approx(0.1).epsilon(0.01));
}

TEST_CASE("a checkpoint comes back as it was, or not at all") {
  temporary_folder const folder;
  auto const path = folder.path() / "c";
  checkpoint c;
  c.settings = "steps=10\nlr=0.1\n";
  c.step = 7;
  c.weights = {1, 2, 3};
  c.optimizer_states = {"abc", ""};
  c.steps = {{.step = 1, .loss = 5.5}, {.step = 2, .loss = 5.25}};
  c.validation = {{2, 5}};
  c.milliseconds[3] = 1.5;
  write_checkpoint(path, c);
  auto const back = read_checkpoint(path, c.settings);
  CHECK(back.step == 7);
  CHECK(back.weights == c.weights);
  CHECK(back.optimizer_states == c.optimizer_states);
  CHECK(back.steps.size() == 2);
  CHECK(back.steps[1].loss == 5.25);
  CHECK(back.validation[0].loss == 5);
  CHECK(back.milliseconds == c.milliseconds);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);

  CHECK_THROWS_WITH_AS(static_cast<void>(read_checkpoint(path, "steps=10\nlr=0.2\n")),
                       doctest::Contains("lr is 0.1 there and 0.2 here"), usage_error);
  auto const content = read_file(path);
  for (std::size_t i = 0; i < content.size(); ++i) {
    auto damaged = content;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    write_atomically(path, damaged);
    CHECK_THROWS_AS(static_cast<void>(read_checkpoint(path, c.settings)), usage_error);
    write_atomically(path, content.substr(0, i));
    CHECK_THROWS_AS(static_cast<void>(read_checkpoint(path, c.settings)), usage_error);
  }
}

TEST_CASE("charts cope with any data") {
  std::vector<point> many(1000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = {static_cast<double>(i), 1};
  auto const few = thin(many, 10);
  CHECK(few.size() == 10);
  CHECK(few.front().x == 0);
  CHECK(few.back().x == 999);

  double const nan = std::nan("");
  for (auto const& line : {std::vector<point>{},
                           {{1, 1}},
                           {{1, nan}, {2, nan}},
                           {{1, 0}, {2, 0}},
                           {{0.25, 1}, {0.25, 2}},
                           {{1, 100}, {2, std::nextafter(100, 0)}},
                           {{1, 1e-9}, {1e9, 1e9}}}) {
    for (bool const log_x : {false, true}) {
      chart const c{"<title>", "x", "y", "", log_x, {{"a & b", 0, line, line}}, {}};
      auto const html = figure_html(c);
      CHECK(html.find("nan") == std::string::npos);
      CHECK(html.find("inf") == std::string::npos);
      CHECK(html.find("&lt;title&gt;") != std::string::npos);
      CHECK(html.find("a &amp; b") != std::string::npos);
    }
  }
}

TEST_CASE("forward and backward pass with parameters of their own") {
  gpt_shape const shape{.layers = 2, .width = 8, .heads = 2, .context = 5};
  std::int64_t const rows = 2;
  auto const values = test_parameters<double>(shape);
  aligned_vector<double> const parameters(values.begin(), values.end());
  auto later = parameters;
  auto const inputs = random_bytes(rows * shape.context, 1);
  auto const targets = random_bytes(rows * shape.context, 2);
  gpt<double> model(shape, rows);
  aligned_vector<double> plain(parameters.size()), same(plain), mixed(plain);
  double const loss = model.loss_and_gradient(parameters, inputs, targets, plain);
  CHECK(model.loss_and_gradient(parameters, later, inputs, targets, same) == loss);
  CHECK(same == plain);

  // The last matrix of the last block: its own gradient needs activations and what comes back from
  // above, not its value; what it sends further back does.
  std::string const changed = "block1.contract.weight";
  for (auto const& t : parameter_tensors(shape)) {
    if (t.name != changed) continue;
    for (std::int64_t i = 0; i < t.length; ++i) later[static_cast<std::size_t>(t.offset + i)] *= 2;
  }
  CHECK(model.loss_and_gradient(parameters, later, inputs, targets, mixed) == loss);
  bool below = true;  // in memory order, the tensors before the changed one feed it
  for (auto const& t : parameter_tensors(shape)) {
    below = below && t.name != changed;
    auto const at = [&](auto const& gradient) { return gradient.begin() + t.offset; };
    bool const equal = std::equal(at(plain), at(plain) + t.length, at(mixed));
    CHECK(equal == !below);
  }
}
