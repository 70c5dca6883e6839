// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace train_gpt {
namespace {

int terminal_columns() {
  winsize size{};
  bool const known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

}  // namespace

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
  double const speed = static_cast<double>(step - first_) / seconds;
  auto const left = static_cast<std::int64_t>(static_cast<double>(steps_ - step) / speed + 0.5);
  auto const figures =
      fmt::format("{}/{}  loss {:.3f}  {:.1f} k tokens/s  ETA {}:{:02}", step, steps_, loss_,
                  speed * static_cast<double>(tokens_) / 1000, left / 60, left % 60);
  if (!terminal_) {
    fmt::print(stderr, "{}  {}\n", label_, figures);
    return;
  }
  auto const columns = static_cast<std::int64_t>(terminal_columns());
  auto const others = static_cast<std::int64_t>(label_.size() + figures.size());
  auto const width = std::clamp<std::int64_t>(columns - others - 6, 0, 40);
  auto const full = static_cast<std::size_t>(width * step / steps_);
  auto line = label_ + " [" + std::string(full, '#') +
              std::string(static_cast<std::size_t>(width) - full, '.') + "] " + figures;
  line.resize(std::min<std::size_t>(line.size(), static_cast<std::size_t>(columns) - 1));
  fmt::print(stderr, "\r{}\x1b[K", line);
  std::fflush(stderr);
}

}  // namespace train_gpt
