// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <scape/detail/fnv1a.hpp>
#include <scape/optim/rotated_adam.hpp>

#include "support/raises.hpp"

namespace scape::testing {
namespace {

using enum rotation_source;
using enum rotation_geometry;
using enum epsilon_place;

using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using float_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::span<float> span_of(float_matrix& a) { return {a.data(), static_cast<std::size_t>(a.size())}; }
std::span<float const> span_of(float_matrix const& a) {
  return {a.data(), static_cast<std::size_t>(a.size())};
}

matrix square(std::span<float const> values) {
  auto const n = static_cast<Eigen::Index>(std::lround(std::sqrt(values.size())));
  return Eigen::Map<float_matrix const>(values.data(), n, n).cast<double>();
}

class random_matrices {
 public:
  explicit random_matrices(unsigned seed) : bits_(seed) {}
  matrix normal(Eigen::Index rows, Eigen::Index columns) {
    std::normal_distribution<double> one;
    return matrix::NullaryExpr(rows, columns, [&] { return one(bits_); });
  }
  matrix orthogonal(Eigen::Index n) {
    return Eigen::HouseholderQR<Eigen::MatrixXd>(normal(n, n)).householderQ() *
           matrix::Identity(n, n);
  }
  std::int64_t below(std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(bits_);
  }

 private:
  std::mt19937_64 bits_;
};

double distance_to_orthogonal_rows(matrix const& a) {
  return (a * a.transpose() - matrix::Identity(a.rows(), a.rows())).cwiseAbs().maxCoeff();
}
double distance_to_orthogonal(std::span<float const> basis) {
  return distance_to_orthogonal_rows(square(basis).transpose());
}

// Adam in double.
class reference_adam {
 public:
  explicit reference_adam(rotated_adam_options const& o) : o_(o) {}

  void step(matrix& w, matrix const& g, double lr) {
    double const b1 = double{o_.beta1}, b2 = double{o_.beta2}, epsilon = double{o_.epsilon};
    ++t_;
    if (t_ == 1) m_ = v_ = matrix::Zero(g.rows(), g.cols());
    m_ = b1 * m_ + (1 - b1) * g;
    v_ = b2 * v_ + (1 - b2) * g.cwiseAbs2();
    double const c1 = o_.bias_correction ? 1 / (1 - std::pow(b1, t_)) : 1;
    double const c2 = o_.bias_correction ? 1 / (1 - std::pow(b2, t_)) : 1;
    auto const root = o_.epsilon_at == outside_root
                          ? matrix((c2 * v_).cwiseSqrt().array() + epsilon)
                          : matrix(((c2 * v_).array() + epsilon).sqrt());
    w -= lr * (c1 * m_.cwiseQuotient(root) + double{o_.weight_decay} * w);
  }

 private:
  rotated_adam_options o_;
  matrix m_, v_;
  int t_ = 0;
};

TEST_CASE("arguments are checked before anything is changed") {
  CHECK(rejects([] { rotated_adam(0, 3); }, {"rotated_adam", "0 rows and 3 columns"}));
  CHECK(rejects([] { rotated_adam(3, -1); }, {"3 rows and -1 columns"}));
  auto const refused = [](auto change, std::string_view text) {
    rotated_adam_options o;
    change(o);
    return rejects([&] { rotated_adam(2, 2, o); }, {text});
  };
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(refused([](auto& o) { o.refresh_interval = -1; }, "refresh_interval is negative"));
  CHECK(refused([](auto& o) { o.dimension_limit = -1; }, "dimension_limit is negative"));
  CHECK(refused([](auto& o) { o.beta1 = 1; }, "beta1"));
  CHECK(refused([](auto& o) { o.beta2 = -0.5F; }, "beta2"));
  CHECK(refused([](auto& o) { o.epsilon = 0; }, "epsilon"));
  CHECK(refused([](auto& o) { o.epsilon = std::numeric_limits<float>::denorm_min(); }, "epsilon"));
  CHECK(refused([&](auto& o) { o.weight_decay = nan; }, "weight_decay"));

  rotated_adam adam(2, 3);
  std::vector<float> w(6, 1.0F), g(6, 1.0F), five(5);
  CHECK(rejects([&] { adam.step(five, g, 1); }, {"the length of weights is 5, expected 6"}));
  CHECK(rejects([&] { adam.step(w, five, 1); }, {"the length of gradient is 5, expected 6"}));
  CHECK(rejects([&] { adam.step(w, g, nan); }, {"learning rate"}));
  CHECK(rejects([&] { adam.rotate(five, w); }, {"the length of in is 5"}));
  CHECK(rejects([&] { adam.rotate_back(w, five); }, {"the length of out is 5"}));
  CHECK(adam.left().empty());
  CHECK(w == std::vector<float>(6, 1.0F));
}

TEST_CASE("a gradient with an Inf or a NaN, or too large to square, changes nothing") {
  random_matrices random(1);
  rotated_adam adam(3, 4), twin(3, 4);
  float_matrix w = random.normal(3, 4).cast<float>(), v = w;
  for (int i = 0; i < 25; ++i) {
    float_matrix g = random.normal(3, 4).cast<float>();
    CHECK(adam.step(span_of(w), span_of(g), 0.1F));
    CHECK(twin.step(span_of(v), span_of(g), 0.1F));
    using limits = std::numeric_limits<float>;
    g(i % 3, i % 4) =
        std::array{limits::infinity(), limits::quiet_NaN(), 1e20F}[static_cast<std::size_t>(i % 3)];
    CHECK_FALSE(adam.step(span_of(w), span_of(g), 0.1F));
  }
  CHECK(w == v);
  CHECK(adam.steps() == 24);
  CHECK(adam.refreshes() == 2);
}

TEST_CASE("the largest gradients keep the weights finite") {
  for (float const beta2 : {0.0F, 0.95F, 0.999F}) {
    for (std::int64_t const limit : {0, 10}) {
      for (Eigen::Index const n : {2, 5}) {
        rotated_adam_options o;
        o.beta2 = beta2;
        o.refresh_interval = 1;
        o.dimension_limit = limit;
        rotated_adam adam(n, n, o);
        float_matrix w = float_matrix::Ones(n, n), g = float_matrix::Zero(n, n);
        g(n - 1, n - 1) = 9.22e18F;
        for (int i = 0; i < 200; ++i) CHECK(adam.step(span_of(w), span_of(g), 0.01F));
        g(n - 1, n - 1) = 9.23e18F;
        CHECK_FALSE(adam.step(span_of(w), span_of(g), 0.01F));
        CHECK(w.allFinite());
      }
    }
  }
}

TEST_CASE("which sides are rotated") {
  auto const sides = [](std::int64_t rows, std::int64_t columns, rotation_geometry geometry,
                        std::int64_t limit) {
    rotated_adam_options o;
    o.geometry = geometry;
    o.dimension_limit = limit;
    rotated_adam adam(rows, columns, o);
    std::vector<float> w(static_cast<std::size_t>(adam.size())), g(w.size());
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(i % 7) - 3;
    adam.step(w, g, 0.1F);
    CHECK(adam.rotates() == !(adam.left().empty() && adam.right().empty()));
    CHECK(adam.steps() == (adam.rotates() ? 0 : 1));
    return std::array{std::ssize(adam.left()), std::ssize(adam.right())};
  };
  using lengths = std::array<std::ptrdiff_t, 2>;
  CHECK(sides(4, 6, bilateral, 10) == lengths{16, 36});
  CHECK(sides(4, 6, unilateral, 10) == lengths{16, 0});
  CHECK(sides(6, 4, unilateral, 10) == lengths{0, 16});
  CHECK(sides(5, 5, unilateral, 10) == lengths{25, 0});
  CHECK(sides(4, 6, bilateral, 5) == lengths{16, 0});
  CHECK(sides(4, 6, bilateral, 4) == lengths{16, 0});
  CHECK(sides(6, 4, bilateral, 3) == lengths{0, 0});
  CHECK(sides(6, 4, unilateral, 3) == lengths{0, 0});
  CHECK(sides(1, 6, bilateral, 10) == lengths{0, 0});
  CHECK(sides(6, 1, unilateral, 10) == lengths{0, 0});
  CHECK(sides(1, 1, bilateral, 10) == lengths{0, 0});
}

// Per step, float rounding moves a weight by at most 2^-24 (|w| + 20 lr |update|), and what it did
// to the moments fades with their means: 50 steps of size 0.1 stay well within 1e-4.
TEST_CASE("without a rotation it is Adam") {
  for (auto const place : {outside_root, inside_root}) {
    for (bool const corrected : {true, false}) {
      rotated_adam_options o;
      o.epsilon = 0.25F;  // so that its place matters
      o.epsilon_at = place;
      o.weight_decay = 0.5F;
      o.bias_correction = corrected;
      for (auto const& [rows, columns] : {std::pair(1, 12), std::pair(12, 1), std::pair(3, 4)}) {
        o.dimension_limit = rows == 3 ? 2 : 100;
        rotated_adam adam(rows, columns, o);
        reference_adam reference(o);
        random_matrices random(2);
        float_matrix w = random.normal(rows, columns).cast<float>();
        matrix exact = w.cast<double>();
        for (int i = 0; i < 50; ++i) {
          float_matrix const g = random.normal(rows, columns).cast<float>();
          adam.step(span_of(w), {g.data(), 12}, 0.1F);
          reference.step(exact, g.cast<double>(), 0.1);
        }
        CHECK((w.cast<double>() - exact).cwiseAbs().maxCoeff() < 1e-4);
        CHECK(adam.refreshes() == 0);
      }
    }
  }
}

TEST_CASE("the bases stay orthogonal over 1000 refreshes") {
  for (auto const source : {first_moment, second_moment}) {
    for (auto const& [rows, columns] : {std::pair(48, 48), std::pair(24, 72)}) {
      rotated_adam_options o;
      o.source = source;
      o.refresh_interval = 1;
      rotated_adam adam(rows, columns, o);
      random_matrices random(3);
      // Badly conditioned on purpose: singular values from 1 to 1e-6.
      matrix const scale = Eigen::VectorXd::LinSpaced(rows, 0, -6)
                               .unaryExpr([](double x) { return std::pow(10, x); })
                               .asDiagonal();
      matrix const mix = random.orthogonal(rows) * scale;
      float_matrix w = random.normal(rows, columns).cast<float>();
      double worst = 0;
      for (int i = 0; i <= 1000; ++i) {
        float_matrix g = (mix * random.normal(rows, columns)).cast<float>();
        adam.step(span_of(w), span_of(g), 1e-3F);
        worst = std::max(
            {worst, distance_to_orthogonal(adam.left()), distance_to_orthogonal(adam.right())});
      }
      CHECK(adam.refreshes() == 1000);
      CHECK(worst <= 1e-5);
      CHECK(w.allFinite());
    }
  }
}

// Gradients in the span of four columns: the other eight of the basis have nothing to turn for.
// They may change places, as their eigenvalues are all 0.
TEST_CASE("the null space of the first moment keeps its basis") {
  rotated_adam_options o;
  o.source = first_moment;
  o.refresh_interval = 1;
  rotated_adam adam(12, 4, o);
  random_matrices random(10);
  matrix const span = random.normal(12, 4);
  float_matrix w = random.normal(12, 4).cast<float>();
  matrix first;
  for (int i = 0; i <= 100; ++i) {
    float_matrix g = (span * random.normal(4, 4)).cast<float>();
    adam.step(span_of(w), span_of(g), 1e-3F);
    if (i == 0) first = square(adam.left());
  }
  matrix const overlap = first.rightCols(8).transpose() * square(adam.left()).rightCols(8);
  CHECK(overlap.cwiseAbs().colwise().maxCoeff().minCoeff() > 0.99);
}

TEST_CASE("without a source the basis stays") {
  for (auto const source : {first_moment, second_moment}) {
    rotated_adam_options o;
    o.source = source;
    o.refresh_interval = 1;
    o.beta1 = o.beta2 = 0;
    rotated_adam adam(3, 4, o);
    random_matrices random(13);
    float_matrix w = random.normal(3, 4).cast<float>(), g = w;
    adam.step(span_of(w), span_of(g), 0.1F);
    auto const left = square(adam.left()), right = square(adam.right());
    g.setZero();
    adam.step(span_of(w), span_of(g), 0.1F);
    CHECK(adam.refreshes() == 1);
    CHECK(square(adam.left()) == left);
    CHECK(square(adam.right()) == right);
  }
}

TEST_CASE("a saved state goes on as if it had not been interrupted") {
  for (auto const source : {first_moment, second_moment}) {
    for (auto const geometry : {unilateral, bilateral}) {
      for (int const before : {0, 1, 2, 25}) {
        rotated_adam_options o;
        o.source = source;
        o.geometry = geometry;
        o.refresh_interval = 4;
        rotated_adam whole(5, 7, o), other(5, 7, o);
        random_matrices random(11);
        float_matrix w = random.normal(5, 7).cast<float>();
        auto const gradient = [&] { return float_matrix(random.normal(5, 7).cast<float>()); };
        for (int i = 0; i < before; ++i) whole.step(span_of(w), span_of(gradient()), 0.1F);
        for (int i = 0; i < 3; ++i) {  // is forgotten
          float_matrix elsewhere = w;
          other.step(span_of(elsewhere), span_of(gradient()), 0.1F);
        }
        std::stringstream file;
        whole.save(file);
        other.load(file);
        CHECK(other.steps() == whole.steps());
        CHECK(other.refreshes() == whole.refreshes());
        float_matrix v = w;
        for (int i = 0; i < 10; ++i) {
          auto const g = gradient();
          CHECK(whole.step(span_of(w), span_of(g), 0.1F));
          CHECK(other.step(span_of(v), span_of(g), 0.1F));
        }
        CHECK(w == v);
        CHECK(other.refreshes() == whole.refreshes());
      }
    }
  }
}

TEST_CASE("a damaged or foreign state is refused, and nothing has changed") {
  random_matrices random(12);
  rotated_adam adam(3, 4), twin(3, 4);
  float_matrix w = random.normal(3, 4).cast<float>();
  float_matrix v = w;
  auto const step_both = [&] {
    float_matrix const g = random.normal(3, 4).cast<float>();
    adam.step(span_of(w), {g.data(), 12}, 0.1F);
    twin.step(span_of(v), {g.data(), 12}, 0.1F);
  };
  step_both();
  step_both();
  std::ostringstream saved;
  adam.save(saved);
  auto const good = saved.str();
  auto const refused = [&](std::string const& content, std::string_view text) {
    std::istringstream file(content);
    return raises<checkpoint_error>([&] { adam.load(file); }, {"rotated_adam::load", text});
  };
  CHECK(refused("", "ends early"));
  CHECK(refused("scapeopt", "this is no saved rotated_adam"));
  for (std::size_t const length : {std::size_t{20}, good.size() / 2, good.size() - 1}) {
    CHECK(refused(good.substr(0, length), "ends early"));
  }
  auto damaged = good;
  damaged[good.size() / 2] = static_cast<char>(damaged[good.size() / 2] ^ 1);
  CHECK(refused(damaged, "damaged"));
  auto const state_of = [](std::int64_t rows, std::int64_t columns, auto change) {
    rotated_adam_options o;
    change(o);
    std::ostringstream out;
    rotated_adam(rows, columns, o).save(out);
    return out.str();
  };
  auto const nothing = [](auto&) {};
  CHECK(refused(state_of(4, 4, nothing), "the number of rows in the file is 4, expected 3"));
  CHECK(refused(state_of(3, 3, nothing), "the number of columns"));
  CHECK(refused(state_of(3, 4, [](auto& o) { o.source = first_moment; }), "the source"));
  CHECK(refused(state_of(3, 4, [](auto& o) { o.geometry = unilateral; }), "the right side"));
  CHECK(refused(state_of(3, 4, [](auto& o) { o.dimension_limit = 2; }), "the left side"));
  // A word of the counters, with the hash made right again: 7 words after the 8 letters.
  auto const forged = [&](std::size_t word, std::uint64_t value) {
    auto content = good;
    std::memcpy(content.data() + 8 * word, &value, sizeof(value));
    detail::fnv1a hash;
    hash.add(std::as_bytes(std::span(content).first(content.size() - 8)));
    auto const sum = hash.value();
    std::memcpy(content.data() + content.size() - 8, &sum, sizeof(sum));
    return content;
  };
  std::uint64_t const huge = std::uint64_t{1} << 63;
  CHECK(refused(forged(7, huge), "the numbers of steps"));
  CHECK(refused(forged(8, huge), "the numbers of steps"));
  CHECK(refused(forged(9, 0), "the numbers of steps"));
  CHECK(refused(forged(9, 7), "the numbers of steps"));
  for (int i = 0; i < 12; ++i) step_both();
  CHECK(w == v);

  std::ostringstream full;
  full.setstate(std::ios::badbit);
  CHECK(raises<checkpoint_error>([&] { adam.save(full); }, {"rotated_adam::save", "disk"}));
}

// The gradients of a quadratic with a diagonal Hessian, one coordinate at a time: G G^T and G^T G
// are diagonal, so the eigenbases are permutations.
TEST_CASE("on a diagonal quadratic the trajectory is Adam's") {
  for (auto const geometry : {unilateral, bilateral}) {
    rotated_adam_options o;
    o.geometry = geometry;
    o.refresh_interval = 3;
    auto plain = o;
    plain.dimension_limit = 0;
    int const rows = 4, columns = 6;
    rotated_adam rotated(rows, columns, o), adam(rows, columns, plain);
    random_matrices random(4);
    matrix const curvature = random.normal(rows, columns).cwiseAbs2();
    float_matrix w = random.normal(rows, columns).cast<float>(), x = w;
    auto const gradient = [&](float_matrix const& at, std::int64_t i) {
      float_matrix g = float_matrix::Zero(rows, columns);
      g.data()[i] = static_cast<float>(curvature.data()[i]) * at.data()[i];
      return g;
    };
    auto first = gradient(w, 0);
    rotated.step(span_of(w), span_of(first), 0.05F);  // makes the basis and moves nothing
    bool permuted = false;
    for (int t = 0; t < 600; ++t) {
      auto const i = random.below(rows * columns);
      auto g = gradient(w, i), h = gradient(x, i);
      rotated.step(span_of(w), span_of(g), 0.05F);
      adam.step(span_of(x), span_of(h), 0.05F);
      auto const u = square(rotated.left());
      CHECK(u.cwiseAbs().isApprox(matrix(u.array().abs().round()), 0));
      permuted = permuted || !u.cwiseAbs().isIdentity(0);
      REQUIRE((w - x).cwiseAbs().maxCoeff() < 1e-5F);  // sums may be contracted differently
    }
    CHECK(permuted);
    CHECK(rotated.refreshes() == 200);
  }
}

// The loss |A W B|^2 / 2 with A = `left` S, B = S `right`^T and S = diag(1 ... 0.1): its Hessian
// has the condition number 10^4 and eigenvectors that are products of columns of the two bases.
struct quadratic {
  matrix a, b;

  quadratic(matrix const& left, matrix const& right)
      : a(roots(left.rows()).asDiagonal() * left.transpose()),
        b(right * roots(right.rows()).asDiagonal()) {}

  static Eigen::VectorXd roots(Eigen::Index n) {
    return Eigen::VectorXd::LinSpaced(n, 0, -1).unaryExpr([](double x) { return std::pow(10, x); });
  }
  [[nodiscard]] double loss(matrix const& w) const { return (a * w * b).squaredNorm() / 2; }
  [[nodiscard]] matrix gradient(matrix const& w) const {
    return a.transpose() * (a * w * b) * b.transpose();
  }
};

// The number of steps until the loss is a thousandth of the first one, at the best of some learning
// rates; `delay`: age of the weights a gradient belongs to.
int steps_needed(quadratic const& q, matrix const& start, rotated_adam_options const& o,
                 std::size_t delay) {
  int best = 20'000;
  for (float const lr : {0.03F, 0.01F, 5e-3F, 3e-3F, 2e-3F, 1e-3F, 5e-4F}) {
    rotated_adam adam(start.rows(), start.cols(), o);
    float_matrix w = start.cast<float>();
    std::deque<matrix> versions;
    for (int t = 0; t < best; ++t) {
      versions.push_back(w.cast<double>());
      if (q.loss(versions.back()) < q.loss(start) / 1000) best = t;
      if (versions.size() > delay + 1) versions.pop_front();
      float_matrix g = q.gradient(versions.front()).cast<float>();
      adam.step(span_of(w), span_of(g), lr);
    }
  }
  return best;
}

TEST_CASE("on a rotated quadratic delay harms Adam, and the rotated one much less") {
  for (unsigned const seed : {1U, 2U, 3U}) {
    random_matrices random(seed);
    quadratic const q(random.orthogonal(8), random.orthogonal(8));
    matrix const start = random.normal(8, 8);
    rotated_adam_options rotated, plain;
    plain.dimension_limit = 0;
    auto const adam_steps = steps_needed(q, start, plain, 8);
    auto const rotated_steps = steps_needed(q, start, rotated, 8);
    CAPTURE(adam_steps);
    CAPTURE(rotated_steps);
    CHECK(adam_steps >= 3 * rotated_steps);
    CHECK(rotated_steps < 1500);
  }
}

// Losses over 150 steps with delay 4 of the quadratic with the eigenbases `left` and `right`, from
// the start and with the gradient noise that are the same for all quadratics in the coordinates of
// those bases.
std::vector<double> loss_curve(matrix const& left, matrix const& right,
                               rotated_adam_options const& o) {
  random_matrices random(6);
  quadratic const q(left, right);
  auto const placed = [&](matrix const& a) { return matrix(left * a * right.transpose()); };
  float_matrix w = placed(random.normal(left.rows(), right.rows())).cast<float>();
  rotated_adam adam(left.rows(), right.rows(), o);
  std::deque<matrix> versions;
  std::vector<double> losses;
  for (int t = 0; t < 150; ++t) {
    versions.push_back(w.cast<double>());
    losses.push_back(q.loss(versions.back()));
    if (versions.size() > 5) versions.pop_front();
    matrix const noise = 0.1 * random.normal(left.rows(), right.rows());
    float_matrix g = (q.gradient(versions.front()) + placed(noise)).cast<float>();
    adam.step(span_of(w), span_of(g), 0.01F);
  }
  return losses;
}

double largest_difference(std::vector<double> const& a, std::vector<double> const& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]) / a[i]);
  }
  return largest;
}

// Where one side is rotated, the change of variables may only act on that side. The bilateral cases
// are square, because the first gradient leaves some eigenvectors of the longer side open.
TEST_CASE("an orthogonal change of variables does not change the loss curve") {
  random_matrices random(5);
  auto const plain_basis = [](Eigen::Index n) { return matrix(matrix::Identity(n, n)); };
  struct change {
    Eigen::Index rows, columns;
    rotation_geometry geometry;
  };
  for (auto const& c : {change{8, 8, bilateral}, {6, 9, unilateral}, {9, 6, unilateral}}) {
    for (auto const source : {first_moment, second_moment}) {
      rotated_adam_options o, plain;
      o.source = source;
      o.geometry = c.geometry;
      plain.dimension_limit = 0;
      bool const both = c.geometry == bilateral;
      auto const left =
          both || c.rows < c.columns ? random.orthogonal(c.rows) : plain_basis(c.rows);
      auto const right =
          both || c.columns < c.rows ? random.orthogonal(c.columns) : plain_basis(c.columns);
      auto const compare = [&](rotated_adam_options const& options) {
        return largest_difference(loss_curve(plain_basis(c.rows), plain_basis(c.columns), options),
                                  loss_curve(left, right, options));
      };
      CHECK(compare(o) < 1e-5);  // 150 steps of float rounding, 2^-24 each, on weights near 1
      CHECK(compare(plain) > 0.05);
    }
  }
}

// Algorithm 3 of arXiv 2409.11321 (SOAP) without bias correction, b1 = b2 = 1/2, eps = 1, lr = 1,
// f = 10, by hand. After the first gradient G0, nine zero gradients and G10,
//
//     G0 = 32 (3 0 0; 0 2 0)   makes U = I, V = I: G0 G0^T is diagonal, its larger entry first
//     G10 = (5 0 0; 6 0 0)     U^T G10 V = G10
//     M = G10 / 2              N = M / (sqrt(v) + 1)
//     v = (12.5 0 0; 18 0 0)   W = -N = -(2.5 / (sqrt(12.5) + 1) 0 0; 3 / (sqrt(18) + 1) 0 0)
//
// then the tenth step's refresh, where G0 has faded by 2^-10:
//
//     2 L = 2^-10 G0 G0^T + G10 G10^T = (9 0; 0 4) + (25 30; 30 36) = (34 30; 30 40)
//     diag(U^T L U): the second column comes first now, and v's rows are swapped with it
//     QR of 2 L (e2 e1) = (30 34; 40 30): first column (3 4)/5, second (4 -3)/5
//     2 R = diag(9 + 61, 4, 0): V stays
//
//     G11 = (0 5 10; 10 0 5)   U^T G11 = (8 3 10; -6 4 5)
//     v = ((18 0 0; 12.5 0 0) + (64 9 100; 36 16 25)) / 2 = (41 4.5 50; 24.25 8 12.5)
//     M = (1.25 2.5 5; 6.5 0 2.5)
//     U^T M = (5.95 1.5 5; -2.9 2 2.5)
TEST_CASE("SOAP's rules on a 2 x 3 matrix by hand") {
  rotated_adam_options o;  // 2nd, bilateral, refresh every 10 steps, epsilon outside the root
  o.beta1 = o.beta2 = 0.5F;
  o.epsilon = 1;
  o.bias_correction = false;
  rotated_adam soap(2, 3, o);
  std::vector<float> w(6, 0.0F);
  auto const expect_weights = [&](std::array<double, 6> const& expected) {
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(static_cast<double>(w[i]) == doctest::Approx(expected[i]).epsilon(1e-6));
    }
  };
  soap.step(w, std::array{96.0F, 0.0F, 0.0F, 0.0F, 64.0F, 0.0F}, 1);
  CHECK(square(soap.left()).isIdentity(0));
  CHECK(square(soap.right()).isIdentity(0));
  for (int t = 1; t < 10; ++t) soap.step(w, std::array<float, 6>{}, 1);
  CHECK(w == std::vector<float>(6, 0.0F));

  soap.step(w, std::array{5.0F, 0.0F, 0.0F, 6.0F, 0.0F, 0.0F}, 1);
  double const a = -2.5 / (std::sqrt(12.5) + 1), b = -3 / (std::sqrt(18) + 1);
  expect_weights({a, 0, 0, b, 0, 0});
  CHECK(soap.refreshes() == 1);
  matrix u(2, 2);
  u << 0.6, 0.8, 0.8, -0.6;
  CHECK(square(soap.left()).isApprox(u, 1e-6));
  CHECK(square(soap.right()).isIdentity(1e-6));

  soap.step(w, std::array{0.0F, 5.0F, 10.0F, 10.0F, 0.0F, 5.0F}, 1);
  auto const n = [](double m, double v) { return m / (std::sqrt(v) + 1); };
  std::array const top{n(5.95, 41), n(1.5, 4.5), n(5, 50)};
  std::array const bottom{n(-2.9, 24.25), n(2, 8), n(2.5, 12.5)};
  std::array<double, 6> expected{a, 0, 0, b, 0, 0};
  for (std::size_t i = 0; i < 3; ++i) {
    expected[i] -= 0.6 * top[i] + 0.8 * bottom[i];
    expected[i + 3] -= 0.8 * top[i] - 0.6 * bottom[i];
  }
  expect_weights(expected);
}

// The same rules in double, with a QR by Gram and Schmidt.
class reference_rotated {
 public:
  //! `u` and `v`: the first bases, the identity for a side that is not rotated.
  reference_rotated(rotated_adam_options const& o, matrix const& g, matrix u, matrix v,
                    bool turns_left, bool turns_right)
      : o_(o),
        u_(std::move(u)),
        v_(std::move(v)),
        l_((1 - b2()) * g * g.transpose()),
        r_((1 - b2()) * g.transpose() * g),
        m_(matrix::Zero(g.rows(), g.cols())),
        second_(m_),
        turns_left_(turns_left),
        turns_right_(turns_right) {}

  void step(matrix& w, matrix const& g, double lr) {
    ++t_;
    double const b1 = double{o_.beta1}, epsilon = double{o_.epsilon};
    m_ = b1 * m_ + (1 - b1) * g;
    matrix const rotated = u_.transpose() * g * v_;
    second_ = b2() * second_ + (1 - b2()) * rotated.cwiseAbs2();
    double const c1 = 1 - std::pow(b1, t_), c2 = 1 - std::pow(b2(), t_);
    matrix const mean = second_ / c2;
    matrix const root = o_.epsilon_at == inside_root ? matrix((mean.array() + epsilon).sqrt())
                                                     : matrix(mean.cwiseSqrt().array() + epsilon);
    matrix const change = u_ * (u_.transpose() * m_ * v_ / c1).cwiseQuotient(root) * v_.transpose();
    w -= lr * (change + double{o_.weight_decay} * w);
    l_ = b2() * l_ + (1 - b2()) * g * g.transpose();
    r_ = b2() * r_ + (1 - b2()) * g.transpose() * g;
    if (t_ % o_.refresh_interval != 0) return;
    bool const of_m = o_.source == first_moment;
    std::vector<Eigen::Index> rows(static_cast<std::size_t>(g.rows()));
    std::vector<Eigen::Index> columns(static_cast<std::size_t>(g.cols()));
    std::iota(rows.begin(), rows.end(), 0);
    std::iota(columns.begin(), columns.end(), 0);
    if (turns_left_) rows = refresh(of_m ? matrix(m_ * m_.transpose()) : l_, u_);
    if (turns_right_) columns = refresh(of_m ? matrix(m_.transpose() * m_) : r_, v_);
    matrix const old = second_;
    for (Eigen::Index i = 0; i < old.rows(); ++i) {
      for (Eigen::Index j = 0; j < old.cols(); ++j) {
        second_(i, j) =
            old(rows[static_cast<std::size_t>(i)], columns[static_cast<std::size_t>(j)]);
      }
    }
  }

 private:
  [[nodiscard]] double b2() const { return double{o_.beta2}; }

  static std::vector<Eigen::Index> refresh(matrix const& s, matrix& basis) {
    std::vector<Eigen::Index> order;
    for (Eigen::Index i = 0; i < basis.cols(); ++i) order.push_back(i);
    auto const quotient = [&](Eigen::Index i) { return basis.col(i).dot(s * basis.col(i)); };
    std::ranges::sort(order, std::greater(), quotient);
    matrix q(s.rows(), s.cols());
    for (Eigen::Index i = 0; i < q.cols(); ++i) {
      Eigen::VectorXd x = s * basis.col(order[static_cast<std::size_t>(i)]);
      for (int twice = 0; twice < 2; ++twice) {
        for (Eigen::Index j = 0; j < i; ++j) x -= q.col(j).dot(x) * q.col(j);
      }
      q.col(i) = x.normalized();
    }
    basis = q;
    return order;
  }

  rotated_adam_options o_;
  matrix u_, v_, l_, r_, m_, second_;
  bool turns_left_, turns_right_;
  int t_ = 0;
};

TEST_CASE("the rules over many refreshes") {
  struct setting {
    rotation_source source;
    rotation_geometry geometry;
    Eigen::Index rows, columns;
  };
  for (auto const& c : {setting{second_moment, bilateral, 4, 4},  // SOAP
                        {second_moment, bilateral, 3, 5},
                        {second_moment, unilateral, 3, 5},
                        {first_moment, bilateral, 4, 4},
                        {first_moment, unilateral, 5, 3}}) {
    for (bool const plain : {true, false}) {
      rotated_adam_options o;
      o.source = c.source;
      o.geometry = c.geometry;
      o.refresh_interval = 3;
      if (!plain) {
        o.epsilon_at = inside_root;
        o.epsilon = 0.01F;
        o.weight_decay = 0.5F;
      }
      random_matrices random(7);
      // Directions of different size, so that the order of the eigenvalues changes now and then.
      matrix const left = random.orthogonal(c.rows), right = random.orthogonal(c.columns);
      auto const scale_of = [](Eigen::Index n, int t) {
        Eigen::VectorXd scale = Eigen::VectorXd::LinSpaced(n, 1.2, 0.3);
        scale(0) = 1 + std::sin(t / 15.0);
        return scale;
      };
      auto const gradient = [&](int t) {
        matrix const noise = random.normal(c.rows, c.columns);
        return float_matrix((left * scale_of(c.rows, t).asDiagonal() * noise *
                             scale_of(c.columns, t + 20).asDiagonal() * right)
                                .cast<float>());
      };
      rotated_adam adam(c.rows, c.columns, o);
      float_matrix w = random.normal(c.rows, c.columns).cast<float>();
      matrix exact = w.cast<double>();
      auto g = gradient(0);
      adam.step(span_of(w), span_of(g), 0.05F);
      CHECK(w.cast<double>() == exact);
      auto const basis = [](std::span<float const> found, Eigen::Index n) {
        return found.empty() ? matrix(matrix::Identity(n, n)) : square(found);
      };
      auto const u = basis(adam.left(), c.rows), v = basis(adam.right(), c.columns);
      // Eigenvectors, by descending eigenvalue: orthogonal rows or columns, or both.
      matrix rotated = u.transpose() * g.cast<double>() * v;
      Eigen::VectorXd const singular = Eigen::JacobiSVD<matrix>(g.cast<double>()).singularValues();
      if (c.geometry == bilateral) {
        matrix expected = matrix::Zero(c.rows, c.columns);
        expected.diagonal() = singular;
        CHECK((matrix(rotated.cwiseAbs()) - expected).cwiseAbs().maxCoeff() < 1e-5);
      } else {
        if (c.rows > c.columns) rotated.transposeInPlace();
        CHECK((rotated.rowwise().norm() - singular).cwiseAbs().maxCoeff() < 1e-5);
        rotated.rowwise().normalize();
        CHECK(distance_to_orthogonal_rows(rotated) < 1e-5);
      }

      reference_rotated reference(o, g.cast<double>(), u, v, !adam.left().empty(),
                                  !adam.right().empty());
      for (int t = 1; t <= 120; ++t) {
        g = gradient(t);
        adam.step(span_of(w), span_of(g), 0.05F);
        reference.step(exact, g.cast<double>(), 0.05);
        REQUIRE((w.cast<double>() - exact).cwiseAbs().maxCoeff() < 1e-4);
      }
      CHECK(adam.refreshes() == 40);
    }
  }
}

// Eigenvectors of equal eigenvalues are not determined; the spaces they span are.
TEST_CASE("near-equal eigenvalues: the subspaces are found") {
  for (auto const source : {first_moment, second_moment}) {
    rotated_adam_options o;
    o.source = source;
    o.refresh_interval = 1;
    o.beta1 = o.beta2 = 0.5F;
    random_matrices random(8);
    matrix const left = random.orthogonal(6), right = random.orthogonal(6);
    Eigen::VectorXd values(6);
    values << 4, 4 + 1e-6, 4 - 1e-6, 1, 1, 0.2;
    rotated_adam adam(6, 6, o);
    float_matrix w = random.normal(6, 6).cast<float>(), g = random.normal(6, 6).cast<float>();
    adam.step(span_of(w), span_of(g), 0.01F);
    g = (left * values.asDiagonal() * right.transpose()).cast<float>();
    for (int t = 0; t < 60; ++t) adam.step(span_of(w), span_of(g), 0.01F);
    auto const expect_spaces = [&](matrix const& found, matrix const& true_basis) {
      int first = 0;
      for (int const length : {3, 2, 1}) {
        auto const f = found.middleCols(first, length), e = true_basis.middleCols(first, length);
        CHECK((f * f.transpose() - e * e.transpose()).cwiseAbs().maxCoeff() < 1e-5);
        first += length;
      }
    };
    expect_spaces(square(adam.left()), left);
    expect_spaces(square(adam.right()), right);
  }
}

TEST_CASE("rotate and rotate_back are each other's inverse, and keep the norm") {
  random_matrices random(9);
  for (auto const geometry : {unilateral, bilateral}) {
    rotated_adam_options o;
    o.geometry = geometry;
    rotated_adam adam(5, 7, o);
    float_matrix w = random.normal(5, 7).cast<float>(), g = random.normal(5, 7).cast<float>();
    adam.step(span_of(w), span_of(g), 0.1F);
    float_matrix a = random.normal(5, 7).cast<float>(), rotated(5, 7), back(5, 7);
    adam.rotate(span_of(a), span_of(rotated));
    adam.rotate_back(span_of(rotated), span_of(back));
    CHECK((back - a).cwiseAbs().maxCoeff() < 1e-5F);
    CHECK(rotated.norm() == doctest::Approx(a.norm()).epsilon(1e-5));
    CHECK((rotated - a).cwiseAbs().maxCoeff() > 0.5F);
    // The first gradient: rows by descending norm, orthogonal to each other.
    adam.rotate(span_of(g), span_of(rotated));
    matrix const products = rotated.cast<double>() * rotated.cast<double>().transpose();
    for (Eigen::Index i = 0; i < 5; ++i) {
      for (Eigen::Index j = 0; j < i; ++j) CHECK(std::abs(products(i, j)) < 1e-4);
      if (i > 0) CHECK(products(i, i) < products(i - 1, i - 1));
    }
  }
}

}  // namespace
}  // namespace scape::testing
