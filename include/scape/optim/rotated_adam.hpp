// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Adam in the eigenbasis of a weight matrix's gradients (basis rotation, arXiv 2602.03515; with
//! the default options SOAP, arXiv 2409.11321). Stale gradients harm Adam where the Hessian's
//! eigenvectors are far from the coordinate axes; rotated, it bears the delay of an asynchronous
//! pipeline much better.
//!
//! Needs Eigen 3.4, which the caller's build has to provide, and so is not part of scape.hpp. For
//! the host only: on a GPU it would need a BLAS and a batched QR, which is not the small kernel
//! that the other headers have.

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <limits>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <scape/detail/checkpoint.hpp>
#include <scape/error.hpp>
#include <scape/optim/options.hpp>

namespace scape {

//! Whose eigenvectors the basis is made of.
enum class rotation_source : std::uint8_t {
  first_moment,  //!< M M^T and M^T M, "1st": nothing to store
  second_moment  //!< running means of G G^T and G^T G, "2nd"
};

enum class rotation_geometry : std::uint8_t {
  unilateral,  //!< the side of the smaller dimension alone, the left one of a square
  bilateral
};

enum class epsilon_place : std::uint8_t {
  outside_root,  //!< M / (sqrt(V) + eps), as in Adam and SOAP
  inside_root    //!< M / sqrt(V + eps), as in the paper on basis rotation
};

struct rotated_adam_options {
  rotation_source source = rotation_source::second_moment;
  rotation_geometry geometry = rotation_geometry::bilateral;
  std::int64_t refresh_interval = 10;     //!< steps; 0: the first basis stays
  std::int64_t dimension_limit = 10'000;  //!< longer sides are not rotated
  float beta1 = 0.9F;
  float beta2 = 0.95F;  //!< of the rotated second moment, and of G G^T and G^T G
  float epsilon = 1e-8F;
  epsilon_place epsilon_at = epsilon_place::outside_root;
  float weight_decay = 0;  //!< decoupled
  bool bias_correction = true;
};

namespace detail {

using rotation_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

//! The eigenvectors of the symmetric `s`, by descending eigenvalue; the largest component of each
//! is positive.
inline rotation_matrix eigenbasis(Eigen::MatrixXd const& s) {
  Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> const solver(s);
  Eigen::MatrixXd vectors = solver.eigenvectors().rowwise().reverse();
  for (auto column : vectors.colwise()) {
    Eigen::Index largest = 0;
    column.cwiseAbs().maxCoeff(&largest);
    if (column(largest) < 0) column = -column;
  }
  return vectors.cast<float>();
}

//! One step of orthogonal iteration towards the eigenvectors of the positive semidefinite `s`. The
//! columns are first put in descending order of their Rayleigh quotients; returns that order.
//! Each new column lies within a right angle of s times the old one.
//!
//! 1e-12 of the trace is added to all eigenvalues. That moves no eigenvector, but without it the
//! images of the null space's columns would be rounding errors of this product, and every call
//! would draw new ones. (Against those of a sum in float it does not help.) Where s is 0 nothing
//! changes.
inline std::vector<Eigen::Index> iterate_eigenbasis(Eigen::MatrixXd const& s,
                                                    rotation_matrix& basis) {
  std::vector<Eigen::Index> order(static_cast<std::size_t>(basis.cols()));
  std::iota(order.begin(), order.end(), 0);
  if (s.trace() == 0) return order;
  Eigen::MatrixXd const old = basis.cast<double>();
  Eigen::MatrixXd const image = s * old + 1e-12 * s.trace() * old;
  Eigen::VectorXd const quotients = old.cwiseProduct(image).colwise().sum();
  std::ranges::stable_sort(
      order, [&](Eigen::Index a, Eigen::Index b) { return quotients(a) > quotients(b); });

  Eigen::HouseholderQR<Eigen::MatrixXd> const qr(image(Eigen::all, order));
  Eigen::MatrixXd vectors = qr.householderQ();
  for (Eigen::Index i = 0; i < vectors.cols(); ++i) {
    if (qr.matrixQR()(i, i) < 0) vectors.col(i) *= -1;
  }
  basis = vectors.cast<float>();
  return order;
}

inline void expect_valid(caller op, rotated_adam_options const& o) {
  expect(o.refresh_interval >= 0, op, "refresh_interval is negative; 0 keeps the first basis");
  expect(o.dimension_limit >= 0, op, "dimension_limit is negative; 0 rotates nothing");
  expect(o.beta1 >= 0 && o.beta1 < 1, op, "beta1 is outside [0, 1)");
  expect(o.beta2 >= 0 && o.beta2 < 1, op, "beta2 is outside [0, 1)");
  expect(o.epsilon > 0 && std::isnormal(o.epsilon), op,
         "epsilon is not a positive number, or is denormal");
  expect(std::isfinite(o.weight_decay), op, "weight_decay is not finite");
}

}  // namespace detail

//! The optimizer of one m x n weight matrix, row by row in memory. With U (m x m) and V (n x n)
//! orthogonal and G the gradient, at step t
//!
//!     M  = b1 M + (1 - b1) G                        in the original basis
//!     v  = b2 v + (1 - b2) (U^T G V)^2              in the rotated basis, element by element
//!     W -= lr [ U (U^T M V / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)) V^T + wd W ]
//!
//! and then, every refresh_interval steps, U moves one step of orthogonal iteration (a product and
//! a Householder QR, in double) towards the eigenvectors of the source, columns by descending
//! eigenvalue; v is permuted with the columns, never rotated. The same for V. As in SOAP the
//! refresh ends a step, so that no gradient is seen in a basis it had a part in, and the very first
//! gradient makes the first basis, by an eigendecomposition, and moves nothing.
//!
//! Sides of length 1 or beyond dimension_limit, and all sides of a vector, keep the identity; a
//! matrix without a rotated side is under plain Adam from its first gradient on.
//!
//! Owns its state; a step allocates nothing of note, a refresh does.
class rotated_adam {
 public:
  rotated_adam(std::int64_t rows, std::int64_t columns, rotated_adam_options const& options = {})
      : options_(options), rows_(rows), columns_(columns) {
    constexpr auto op = "rotated_adam";
    detail::expect_valid(op, options);
    detail::expect(rows >= 1 && columns >= 1, op, [&] {
      return "the matrix has " + std::to_string(rows) + " rows and " + std::to_string(columns) +
             " columns, at least one of each is needed";
    });
    bool const both = options.geometry == rotation_geometry::bilateral;
    auto const rotated = [&](std::int64_t length, bool wanted) {
      return wanted && rows > 1 && columns > 1 && length <= options.dimension_limit;
    };
    left_.rotated = rotated(rows, both || rows <= columns);
    right_.rotated = rotated(columns, both || columns < rows);
    m_.setZero(rows, columns);
    v_.setZero(rows, columns);
  }

  //! `weights` and `gradient` hold rows * columns elements. Returns false and changes nothing if
  //! the gradient has an Inf or a NaN, or a norm whose square is beyond a quarter of float's range.
  bool step(std::span<float> weights, std::span<float const> gradient, float lr) {
    constexpr auto op = "rotated_adam::step";
    detail::expect_equal(op, "the length of weights", std::ssize(weights), size());
    detail::expect_equal(op, "the length of gradient", std::ssize(gradient), size());
    detail::expect(std::isfinite(lr), op, "the learning rate is not finite");
    const_map const g(gradient.data(), rows_, columns_);
    if (!(g.squaredNorm() <= std::numeric_limits<float>::max() / 4)) return false;
    if (rotates() && !has_bases()) {
      make_basis(g);
      return true;
    }

    ++steps_;
    m_ = options_.beta1 * m_ + (1 - options_.beta1) * g;
    rotate(g, rotated_);
    v_ = options_.beta2 * v_ + (1 - options_.beta2) * rotated_.cwiseAbs2();
    rotate(m_, rotated_);
    normalise();
    rotate_back(rotated_, change_);
    map w(weights.data(), rows_, columns_);
    w -= lr * (change_ + options_.weight_decay * w);

    learn(g);
    bool const due = options_.refresh_interval > 0 && steps_ % options_.refresh_interval == 0;
    if (due && rotates()) refresh();
    return true;
  }

  //! Writes the state, and of the options what gives it its form. Little-endian: "scaperot"; 64-bit
  //! words: version, rows, columns, left and right side rotated, source, steps, refreshes, 1 if
  //! there are bases; the floats of M, of v and, by side, of the basis and its running mean, row by
  //! row; the FNV-1a hash of all before. Throws checkpoint_error if the stream fails.
  void save(std::ostream& out) const {
    detail::hashing_writer to("rotated_adam::save", out);
    to.write(magic);
    for (auto const& [name, value] : form()) to.value(value);
    to.write(std::array{static_cast<std::uint64_t>(steps_), static_cast<std::uint64_t>(refreshes_),
                        std::uint64_t{has_bases()}});
    for (auto const* part : parts(*this)) to.write(view(*part));
    to.end();
  }
  //! Takes over what save() wrote for the same form; the other options remain. Throws
  //! checkpoint_error, and nothing has changed then.
  void load(std::istream& in) {
    detail::hashing_reader from("rotated_adam::load", in);
    if (from.value(std::array<char, 8>{}) != magic) from.fail("this is no saved rotated_adam");
    for (auto const& [name, value] : form()) {
      from.expect_same(name, from.value(std::uint64_t{}), value);
    }
    auto const [steps, refreshes, bases] = from.value(std::array<std::uint64_t, 3>{});
    bool const turned = bases == 1;
    bool const possible = turned ? rotates() : bases == 0 && (steps == 0 || !rotates());
    if (std::max(steps, refreshes) >> 62 != 0 || !possible) {
      from.fail("the numbers of steps and bases are wrong; the file is damaged");
    }
    rotated_adam loaded(rows_, columns_, options_);
    loaded.steps_ = static_cast<std::int64_t>(steps);
    loaded.refreshes_ = static_cast<std::int64_t>(refreshes);
    auto const make_room = [&](side& s, Eigen::Index length) {
      if (!s.rotated || !turned) return;
      s.basis.resize(length, length);
      if (options_.source == rotation_source::second_moment) s.covariance.resize(length, length);
    };
    make_room(loaded.left_, rows_);
    make_room(loaded.right_, columns_);
    for (auto* part : parts(loaded)) {
      from.read(std::as_writable_bytes(std::span(part->data(), view(*part).size())));
    }
    from.end();
    *this = std::move(loaded);
  }

  //! `out` = U^T `in` V, rows * columns elements each; the two may be the same.
  void rotate(std::span<float const> in, std::span<float> out) {
    expect_lengths("rotated_adam::rotate", in, out);
    rotate(const_map(in.data(), rows_, columns_), rotated_);
    std::copy_n(rotated_.data(), size(), out.data());
  }
  //! `out` = U `in` V^T.
  void rotate_back(std::span<float const> in, std::span<float> out) {
    expect_lengths("rotated_adam::rotate_back", in, out);
    rotate_back(const_map(in.data(), rows_, columns_), change_);
    std::copy_n(change_.data(), size(), out.data());
  }

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::int64_t size() const noexcept { return rows_ * columns_; }
  [[nodiscard]] bool rotates() const noexcept { return left_.rotated || right_.rotated; }
  //! Steps that moved the weights, unless by a learning rate of 0.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  //! The first basis not counted.
  [[nodiscard]] std::int64_t refreshes() const noexcept { return refreshes_; }

  [[nodiscard]] std::span<float const> first_moment() const noexcept { return view(m_); }
  //! In the rotated basis.
  [[nodiscard]] std::span<float const> second_moment() const noexcept { return view(v_); }
  //! U and V, a basis vector per column; empty for the identity, and before the first gradient.
  [[nodiscard]] std::span<float const> left() const noexcept { return view(left_.basis); }
  [[nodiscard]] std::span<float const> right() const noexcept { return view(right_.basis); }

 private:
  using matrix = detail::rotation_matrix;
  using map = Eigen::Map<matrix>;
  using const_map = Eigen::Map<matrix const>;

  struct side {
    bool rotated = false;
    matrix basis;       // empty until the first gradient
    matrix covariance;  // running mean of the gradients' products; rotation_source::second_moment
  };

  static constexpr std::array<char, 8> magic = {'s', 'c', 'a', 'p', 'e', 'r', 'o', 't'};

  [[nodiscard]] std::array<std::pair<char const*, std::uint64_t>, 6> form() const noexcept {
    return {{{"the format version", 1},
             {"the number of rows", static_cast<std::uint64_t>(rows_)},
             {"the number of columns", static_cast<std::uint64_t>(columns_)},
             {"whether the left side is rotated", left_.rotated ? 1 : 0},
             {"whether the right side is rotated", right_.rotated ? 1 : 0},
             {"the source", static_cast<std::uint64_t>(options_.source)}}};
  }
  [[nodiscard]] bool has_bases() const noexcept {
    return left_.basis.size() + right_.basis.size() > 0;
  }
  //! What is saved, of a rotated_adam or a const one.
  template <class Self>
  static auto parts(Self& self) -> std::array<decltype(&self.m_), 6> {
    return {&self.m_,           &self.v_,
            &self.left_.basis,  &self.left_.covariance,
            &self.right_.basis, &self.right_.covariance};
  }

  static std::span<float const> view(matrix const& a) noexcept {
    return {a.data(), static_cast<std::size_t>(a.size())};
  }
  void expect_lengths(detail::caller op, std::span<float const> in, std::span<float> out) const {
    detail::expect_equal(op, "the length of in", std::ssize(in), size());
    detail::expect_equal(op, "the length of out", std::ssize(out), size());
  }

  template <class In>
  void rotate(In const& in, matrix& out) {
    if (left_.basis.size() > 0) {
      out.noalias() = left_.basis.transpose() * in;
    } else {
      out = in;
    }
    if (right_.basis.size() == 0) return;
    product_.noalias() = out * right_.basis;
    out.swap(product_);
  }
  template <class In>
  void rotate_back(In const& in, matrix& out) {
    if (left_.basis.size() > 0) {
      out.noalias() = left_.basis * in;
    } else {
      out = in;
    }
    if (right_.basis.size() == 0) return;
    product_.noalias() = out * right_.basis.transpose();
    out.swap(product_);
  }

  //! Divides the rotated first moment by the root of the second one.
  void normalise() {
    auto const first = options_.bias_correction ? correction(options_.beta1) : 1.0F;
    auto const second = options_.bias_correction ? correction(options_.beta2) : 1.0F;
    auto const m = rotated_.array() * first;
    auto const v = v_.array() * second;
    if (options_.epsilon_at == epsilon_place::outside_root) {
      rotated_.array() = m / (v.sqrt() + options_.epsilon);
    } else {
      rotated_.array() = m / (v + options_.epsilon).sqrt();
    }
  }
  [[nodiscard]] float correction(float beta) const noexcept {
    return detail::bias_correction(beta, steps_);
  }

  //! Adds the gradient's products to the running means.
  void learn(const_map const& g) {
    if (options_.source == rotation_source::first_moment) return;
    auto const weight = 1 - options_.beta2;
    auto const add = [&](side& s, auto const& a) {
      if (!s.rotated) return;
      s.covariance *= options_.beta2;
      s.covariance.noalias() += weight * a * a.transpose();
    };
    add(left_, g);
    add(right_, g.transpose());
  }

  void make_basis(const_map const& g) {
    Eigen::MatrixXd const wide = g.cast<double>();
    auto const make = [&](side& s, auto const& a) {
      if (!s.rotated) return;
      s.basis = detail::eigenbasis(a * a.transpose());
      if (options_.source == rotation_source::second_moment)
        s.covariance.setZero(a.rows(), a.rows());
    };
    make(left_, wide);
    make(right_, wide.transpose());
    learn(g);
  }

  void refresh() {
    auto const iterate = [&](side& s, auto const& m) {
      return options_.source == rotation_source::first_moment
                 ? detail::iterate_eigenbasis(m * m.transpose(), s.basis)
                 : detail::iterate_eigenbasis(s.covariance.cast<double>(), s.basis);
    };
    Eigen::MatrixXd const m = m_.cast<double>();
    if (left_.rotated) v_ = v_(iterate(left_, m), Eigen::all).eval();
    if (right_.rotated) v_ = v_(Eigen::all, iterate(right_, m.transpose())).eval();
    ++refreshes_;
  }

  rotated_adam_options options_;
  std::int64_t rows_, columns_;
  std::int64_t steps_ = 0, refreshes_ = 0;
  side left_, right_;
  matrix m_, v_;
  matrix rotated_, product_, change_;  // scratch
};

}  // namespace scape
