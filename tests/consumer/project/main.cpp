// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <scape/scape.hpp>

int main() {
  std::printf("scape %d.%d.%d\n", SCAPE_VERSION_MAJOR, SCAPE_VERSION_MINOR, SCAPE_VERSION_PATCH);
}
