// SPDX-License-Identifier: Apache-2.0
#include "gpt.hpp"

#include <cmath>
#include <numbers>

#include "gpt_definitions.hpp"
#include "random.hpp"

namespace train_gpt {

std::vector<tensor> parameter_tensors(gpt_shape const& s) {
  std::vector<tensor> tensors;
  auto add = [&](std::string name, std::int64_t length, bool one_dimensional) {
    std::int64_t const offset = tensors.empty() ? 0 : tensors.back().offset + tensors.back().length;
    tensors.push_back({std::move(name), offset, length, one_dimensional});
  };
  std::int64_t const w = s.width;
  add("token_embedding", vocabulary * w, false);
  add("position_embedding", s.context * w, false);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    std::string const prefix = "block" + std::to_string(i) + ".";
    add(prefix + "attention_norm.gain", w, true);
    add(prefix + "attention_norm.bias", w, true);
    add(prefix + "qkv.weight", 3 * w * w, false);
    add(prefix + "qkv.bias", 3 * w, true);
    add(prefix + "projection.weight", w * w, false);
    add(prefix + "projection.bias", w, true);
    add(prefix + "mlp_norm.gain", w, true);
    add(prefix + "mlp_norm.bias", w, true);
    add(prefix + "expand.weight", 4 * w * w, false);
    add(prefix + "expand.bias", 4 * w, true);
    add(prefix + "contract.weight", 4 * w * w, false);
    add(prefix + "contract.bias", w, true);
  }
  add("final_norm.gain", w, true);
  add("final_norm.bias", w, true);
  if (!s.tied) add("head.weight", vocabulary * w, false);
  return tensors;
}

std::int64_t parameter_count(gpt_shape const& s) {
  return detail::final_gain_offset(s) + 2 * s.width + (s.tied ? 0 : vocabulary * s.width);
}

gpt_cut whole(gpt_shape const& s) { return {true, 0, s.layers, true}; }

parameter_range parameters_of(gpt_shape const& s, gpt_cut const& cut) {
  auto const block = [&](std::int64_t i) {
    return detail::blocks_offset(s) + i * detail::block_offsets(s.width).end;
  };
  return {cut.embedding ? 0 : block(cut.first), cut.head ? parameter_count(s) : block(cut.last)};
}

std::vector<float> initial_parameters(gpt_shape const& s, std::uint64_t seed) {
  std::vector<float> parameters(static_cast<std::size_t>(parameter_count(s)), 0.0F);
  double const output_scale = 1.0 / std::sqrt(2.0 * static_cast<double>(s.layers));
  for (auto const& t : parameter_tensors(s)) {
    bool const gain = t.name.ends_with(".gain");
    bool const output =
        t.name.ends_with("projection.weight") || t.name.ends_with("contract.weight");
    if (t.one_dimensional && !gain) continue;
    for (std::int64_t i = t.offset; i < t.offset + t.length; ++i) {
      auto& parameter = parameters[static_cast<std::size_t>(i)];
      if (gain) {
        parameter = 1.0F;
        continue;
      }
      auto const counter = 2 * static_cast<std::uint64_t>(i);
      double const radius = std::sqrt(-2.0 * std::log(1.0 - uniform(seed, counter)));
      double const angle = 2.0 * std::numbers::pi * uniform(seed, counter + 1);
      parameter =
          static_cast<float>(0.02 * (output ? output_scale : 1.0) * radius * std::cos(angle));
    }
  }
  return parameters;
}

template class gpt_part<float>;

}  // namespace train_gpt
