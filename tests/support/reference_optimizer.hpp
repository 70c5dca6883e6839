// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The sparse and the dense step of P ranks as plain serial loops in double precision. It shares
//! option and span types with the library, and no code.
//!
//! What the library stores as float (residual, first moment, score, clipping coefficient) is
//! rounded to float where it is stored. With inputs whose sums are exact, all of those and the
//! masks and ages agree bit for bit; `inexact` counts the sums that were not.
//!
//! Weights agree within weight_bound. With d = 2^-24, the relative error of one float operation,
//! and first-order terms only:
//!
//!     g = u * 1/(1-b1) / s         4 d   (reciprocal, product, root, quotient)
//!     (1-b2) g g                  11 d   (g twice, the constant, two products)
//!     v of adams                  13 d   (b2 m m has 2 d; all terms are positive; the sum)
//!     v of adamw at step t        13 d + 2 t d   (b2 v adds a product and a sum each step)
//!     sqrt(v c2) + eps            E / 2 + 3 d    with E the error of v
//!     s (m c1)                     4 d
//!     N = quotient of the two     E / 2 + 8 d
//!     wd w + N                    2 d |wd w| + d |N|
//!     lr (...), both scaled       2 d
//!     w - ...                      d |w|
//!
//! so with B the bound before the step and E in units of d,
//! B' = B (1 + lr wd) + d [ lr |N| (E / 2 + 11) + 6 lr wd |w| + |w'| ]. One per cent is added for
//! the second-order terms.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <scape/layout.hpp>
#include <scape/optim/options.hpp>

#include "rank_data.hpp"

namespace scape::testing {

inline double to_float(double x) { return static_cast<double>(static_cast<float>(x)); }

//! x rounded to `bits` significant bits, ties to even; for values of ordinary size.
inline double round_to_bits(double x, int bits) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  auto const fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

//! Which update rule, and how a coordinate is updated.
struct reference_update {
  bool second_moment = false;  //!< adamw
  adam_options options;
  int ranks = 1;
  age_scaling moment_scaling = age_scaling::none;
  age_scaling step_scaling = age_scaling::none;
  double tau_max = std::numeric_limits<double>::infinity();

  static double scale(age_scaling kind, double tau) {
    return kind == age_scaling::none ? 1 : kind == age_scaling::sqrt ? std::sqrt(tau) : tau;
  }

  void operator()(std::int64_t step, double lr, double decay, double sum, double tau, double& m,
                  double& v, double& w, double& bound) const {
    double const b1 = double{options.beta1}, b2 = double{options.beta2};
    auto const t = static_cast<double>(step + 1);
    auto const c1 = options.bias_correction ? 1 / (1 - std::pow(b1, t)) : 1.0;
    auto const c2 = options.bias_correction ? 1 / (1 - std::pow(b2, t)) : 1.0;
    tau = std::min(tau, tau_max);
    auto const u = to_float(sum * to_float(1.0 / ranks));
    auto const g = u / (1 - b1) / scale(moment_scaling, tau);
    v = second_moment ? b2 * v + (1 - b2) * g * g : b2 * m * m + (1 - b2) * g * g;
    m = to_float(b1 * m + u);
    auto const normalised =
        scale(step_scaling, tau) * m * c1 / (std::sqrt(v * c2) + double{options.epsilon});
    auto const before = w;
    w -= lr * (normalised + decay * w);

    constexpr double d = 0x1p-24;
    auto const error_of_v = second_moment ? 13 + 2 * t : 13;
    bound = bound * (1 + std::abs(lr * decay)) +
            1.01 * d *
                (std::abs(lr * normalised) * (error_of_v / 2 + 11) +
                 6 * std::abs(lr * decay * before) + std::abs(w));
  }
};

//! Norm, clipping factor and coefficient of every rank, or a skip.
struct reference_guard {
  bool skipped = false;
  std::vector<double> norm, factor, coefficient;

  reference_guard(adam_options const& o, step_arguments const& a,
                  std::span<std::vector<float> const> gradients) {
    auto const divisor = double{a.gradient_divisor};
    double mean_square = 0;
    for (auto const& g : gradients) {
      double square = 0;
      for (auto const x : g) square += double{x} * double{x};
      if (!std::isfinite(square)) skipped = o.skip_nonfinite;
      norm.push_back(std::sqrt(square) / divisor);
      mean_square += square / static_cast<double>(gradients.size());
    }
    for (auto const own : norm) {
      auto const measured =
          o.clip == clip_scope::own_gradient ? own : std::sqrt(mean_square) / divisor;
      auto const clipped = o.clip_norm > 0 && measured > double{o.clip_norm};
      factor.push_back(clipped ? double{o.clip_norm} / measured : 1.0);
      coefficient.push_back(to_float((1 - double{o.beta1}) * (factor.back() / divisor)));
    }
  }
};

//! What the library's layout describes, as given to it.
struct reference_layout {
  std::vector<std::int64_t> boundaries;
  std::vector<parameter_span> spans;
  topk_scope scope = topk_scope::shard;

  [[nodiscard]] std::int64_t size() const { return boundaries.back(); }
  [[nodiscard]] int shards() const { return static_cast<int>(boundaries.size()) - 1; }
  [[nodiscard]] int owner(std::int64_t j) const {
    int p = 0;
    while (j >= boundaries[at(p) + 1]) ++p;
    return p;
  }
  [[nodiscard]] std::size_t span_of(std::int64_t j) const {
    std::size_t s = 0;
    while (j >= spans[s].offset + spans[s].length) ++s;
    return s;
  }
};

//! One coordinate as the reference's statistic sees it.
struct reference_input {
  double moment, residual, age;
  std::int64_t element, step;
};

class reference_sparse_optimizer {
 public:
  using mask_type = std::vector<char>;

  reference_layout layout;
  sparse_optimizer_options options;
  int wire_bits = 24;  //!< 24: float, 11: float16, 8: bfloat16
  reference_update update;
  //! Replaces the statistic of the options.
  std::function<double(reference_input const&)> statistic = {};
  bool statistic_before_send = false;

  std::vector<std::vector<double>> residual;  //!< by rank
  std::vector<double> m, v, w, weight_bound;
  std::vector<int> age;
  std::map<std::int64_t, mask_type> masks;  //!< by step, those to come included
  std::int64_t step_count = 0, skipped = 0, inexact = 0;

  reference_sparse_optimizer(reference_layout l, sparse_optimizer_options const& o, bool adamw,
                             std::span<float const> weights)
      : layout(std::move(l)),
        options(o),
        update{.second_moment = adamw,
               .options = o,
               .ranks = layout.shards(),
               .moment_scaling = o.moment_scaling,
               .step_scaling = o.step_scaling},
        residual(at(layout.shards()), std::vector<double>(at(layout.size()))),
        m(at(layout.size())),
        v(m),
        w(weights.begin(), weights.end()),
        weight_bound(m),
        age(at(layout.size())) {
    if (o.tau_max > 0) update.tau_max = double{o.tau_max};
  }

  void step(std::span<std::vector<float> const> gradients, step_arguments const& arguments) {
    reference_guard const guard(options, arguments, gradients);
    if (guard.skipped) {
      ++skipped;
      return;
    }
    auto const ranks = layout.shards();
    auto const n = layout.size();
    auto const t = step_count;

    for (int i = 0; i < ranks; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        residual[at(i)][at(j)] = exact(residual[at(i)][at(j)] +
                                       guard.coefficient[at(i)] * double{gradients[at(i)][at(j)]});
      }
    }
    // So that the sum of a 16-bit float of 5 exponent bits stays finite.
    auto const limit = wire_bits == 11 ? std::exp2(std::floor(std::log2(65504.0 / ranks)))
                                       : std::numeric_limits<double>::infinity();
    bool const dense = options.first == first_mask::dense && t < std::max(options.lag, 1);
    if (dense) {
      masks[t] = everything();
    } else if (options.lag == 0 || t < options.lag) {
      masks[t] = select(t);
    }
    if (options.lag > 0 && before_send()) masks[t + options.lag] = select(t + options.lag);

    for (std::int64_t j = 0; j < n; ++j) {
      auto const& span = layout.spans[layout.span_of(j)];
      bool const frozen = span.policy == span_policy::frozen;
      if (!masks[t][at(j)]) {
        age[at(j)] = std::min(age[at(j)] + 1, 65535);
        if (options.unmasked == unmasked_moment::decay && !frozen) {
          m[at(j)] = to_float(double{options.beta1} * m[at(j)]);
        }
        continue;
      }
      double sum = 0;
      for (int i = 0; i < ranks; ++i) {
        auto& e = residual[at(i)][at(j)];
        auto const sent = std::clamp(round_to_bits(e, wire_bits), -limit, limit);
        e -= sent;
        sum += sent;
      }
      sum = round_to_bits(sum, wire_bits);
      update(t, double{arguments.lr} * double{span.lr_scale},
             double{options.weight_decay} * double{span.decay_scale}, sum, age[at(j)] + 1, m[at(j)],
             v[at(j)], w[at(j)], weight_bound[at(j)]);
      age[at(j)] = 0;
    }
    if (options.lag > 0 && !before_send()) masks[t + options.lag] = select(t + options.lag);
    ++step_count;
  }

  [[nodiscard]] std::int64_t values_of(std::int64_t step) const {
    std::int64_t count = 0;
    for (auto const bit : masks.at(step)) count += bit;
    return count;
  }

  [[nodiscard]] double overlap(std::int64_t step) const {
    std::int64_t both = 0;
    for (std::int64_t j = 0; j < layout.size(); ++j) {
      both += masks.at(step)[at(j)] != 0 && masks.at(step - 1)[at(j)] != 0;
    }
    auto const all = values_of(step);
    return all == 0 ? 0 : static_cast<double>(both) / static_cast<double>(all);
  }

 private:
  double exact(double x) {
    if (to_float(x) != x) ++inexact;
    return to_float(x);
  }

  [[nodiscard]] bool before_send() const {
    return statistic ? statistic_before_send : options.statistic == statistic_kind::literal;
  }

  [[nodiscard]] double score(reference_input const& in) const {
    if (statistic) return statistic(in);
    if (options.statistic == statistic_kind::literal) {
      return to_float(double{options.beta1} * in.moment + in.residual);
    }
    if (options.statistic == statistic_kind::staleness_aware) {
      return to_float(to_float(in.moment + in.residual) * (1 + in.age));
    }
    // The finaliser of splitmix64 over a linear combination, its upper 24 bits.
    auto x = options.seed + 0x9e3779b97f4a7c15U * static_cast<std::uint64_t>(in.step) +
             0xbf58476d1ce4e5b9U * static_cast<std::uint64_t>(in.element);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return std::ldexp(static_cast<double>((x ^ (x >> 31)) >> 40), -24);
  }

  [[nodiscard]] mask_type everything() const {
    mask_type mask(at(layout.size()));
    for (std::int64_t j = 0; j < layout.size(); ++j) {
      mask[at(j)] = layout.spans[layout.span_of(j)].policy != span_policy::frozen;
    }
    return mask;
  }

  [[nodiscard]] static std::int64_t k_of(double density, std::int64_t length) {
    if (density == 0 || length == 0) return 0;
    auto const k =
        static_cast<std::int64_t>(std::floor(density * static_cast<double>(length) + .5));
    return std::min(std::max<std::int64_t>(k, 1), length);
  }

  //! The mask of `step`, made now.
  [[nodiscard]] mask_type select(std::int64_t step) const {
    auto const ramp = static_cast<double>(options.density_ramp_steps);
    auto const exponent = step < options.density_ramp_steps ? static_cast<double>(step) / ramp : 1;
    auto const raised = [&](double d) { return exponent == 1 ? d : std::pow(d, exponent); };
    mask_type mask(at(layout.size()));
    for (int p = 0; p < layout.shards(); ++p) {
      // Key 0: those who compete within the shard; s + 1: span s alone.
      std::map<std::size_t, std::vector<std::int64_t>> rivals;
      for (auto j = layout.boundaries[at(p)]; j < layout.boundaries[at(p) + 1]; ++j) {
        auto const s = layout.span_of(j);
        auto const& span = layout.spans[s];
        if (span.policy == span_policy::always) mask[at(j)] = 1;
        if (span.policy != span_policy::sparse) continue;
        bool const alone = span.density.has_value() || layout.scope == topk_scope::tensor;
        rivals[alone ? s + 1 : 0].push_back(j);
      }
      for (auto& [key, elements] : rivals) {
        auto const own = key == 0 ? std::nullopt : layout.spans[key - 1].density;
        auto const k = k_of(raised(own.value_or(options.density)), std::ssize(elements));
        choose(p, step, elements, k, mask);
      }
    }
    return mask;
  }

  //! The k best: larger magnitude, then lower index; if too few are in no pending mask, those of
  //! the pending masks with the lowest indices too.
  void choose(int p, std::int64_t step, std::vector<std::int64_t>& elements, std::int64_t k,
              mask_type& mask) const {
    struct candidate {
      bool pending;
      double magnitude;
      std::int64_t element;
    };
    std::vector<candidate> candidates;
    for (auto const j : elements) {
      bool pending = false;
      for (auto s = step_count + 1; s < step_count + options.lag; ++s) {
        auto const found = masks.find(s);
        pending = pending || (found != masks.end() && found->second[at(j)] != 0);
      }
      auto const q =
          score({m[at(j)], residual[at(p)][at(j)], static_cast<double>(age[at(j)]), j, step});
      candidates.push_back(
          {pending, std::isnan(q) ? std::numeric_limits<double>::infinity() : std::abs(q), j});
    }
    std::ranges::sort(candidates, [](candidate const& a, candidate const& b) {
      if (a.pending != b.pending) return b.pending;
      if (!a.pending && a.magnitude != b.magnitude) return a.magnitude > b.magnitude;
      return a.element < b.element;
    });
    for (std::int64_t i = 0; i < k; ++i) mask[at(candidates[at(i)].element)] = 1;
  }
};

class reference_dense_optimizer {
 public:
  reference_layout layout;
  reference_update update;
  std::vector<double> m, v, w, weight_bound;
  std::int64_t step_count = 0, skipped = 0;

  reference_dense_optimizer(reference_layout l, adam_options const& o, bool adamw,
                            std::span<float const> weights)
      : layout(std::move(l)),
        update{.second_moment = adamw, .options = o, .ranks = layout.shards()},
        m(at(layout.size())),
        v(m),
        w(weights.begin(), weights.end()),
        weight_bound(m) {}

  void step(std::span<std::vector<float> const> gradients, step_arguments const& arguments) {
    reference_guard const guard(update.options, arguments, gradients);
    if (guard.skipped) {
      ++skipped;
      return;
    }
    for (std::int64_t j = 0; j < layout.size(); ++j) {
      auto const& span = layout.spans[layout.span_of(j)];
      if (span.policy == span_policy::frozen) continue;
      double sum = 0;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        sum += to_float(guard.coefficient[i] * double{gradients[i][at(j)]});
      }
      update(step_count, double{arguments.lr} * double{span.lr_scale},
             double{update.options.weight_decay} * double{span.decay_scale}, to_float(sum), 1,
             m[at(j)], v[at(j)], w[at(j)], weight_bound[at(j)]);
    }
    ++step_count;
  }
};

}  // namespace scape::testing
