// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How a command line ends without a run: the error that is the user's to mend, and the help.

#include <stdexcept>

namespace train_gpt {

//! The user asked for something that cannot be done: bad flags, an unreadable corpus, an unwritable
//! folder, a checkpoint of another run. The message is one line; the exit code is 2.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

//! What --help asks for.
class help_request : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace train_gpt
