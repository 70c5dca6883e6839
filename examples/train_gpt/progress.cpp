// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace train_gpt {

progress::progress(std::string label, std::int64_t first, std::int64_t steps, std::int64_t tokens,
                   bool quiet)
    : label_(std::move(label)),
      first_(first),
      steps_(steps),
      tokens_(tokens),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) == 1) {}

progress::~progress() {
  if (!quiet_ && terminal_ && shown_ != clock::time_point{}) std::fputc('\n', stderr);
}

void progress::update(std::int64_t step, double loss) {
  loss_ = step == first_ + 1 ? loss : loss_ + 0.05 * (loss - loss_);
  if (quiet_) return;
  auto const now = clock::now();
  bool const last = step == steps_;
  bool const due = terminal_ ? now - shown_ > std::chrono::milliseconds(100)
                             : 10 * step / steps_ != 10 * (step - 1) / steps_;
  if (!due && !last) return;
  shown_ = now;
  show(step, std::chrono::duration<double>(now - start_).count());
}

void progress::show(std::int64_t step, double seconds) const {
  constexpr std::int64_t width = 24;
  double const speed = static_cast<double>(step - first_) / seconds;
  auto const left = static_cast<std::int64_t>(static_cast<double>(steps_ - step) / speed + 0.5);
  auto const full = static_cast<std::size_t>(width * step / steps_);
  std::string const bar = std::string(full, '#') + std::string(width - full, '.');
  fmt::print(stderr, "{}{} [{}] {}/{}  loss {:.3f}  {:.1f} k tokens/s  ETA {}:{:02}{}",
             terminal_ ? "\r" : "", label_, bar, step, steps_, loss_,
             speed * static_cast<double>(tokens_) / 1000, left / 60, left % 60,
             terminal_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
}

}  // namespace train_gpt
