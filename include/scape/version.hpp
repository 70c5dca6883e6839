// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The version of the library. The build system reads it from here.

#define SCAPE_VERSION_MAJOR 0
#define SCAPE_VERSION_MINOR 2
#define SCAPE_VERSION_PATCH 0

//! One number that grows with every release: 10000 major + 100 minor + patch.
#define SCAPE_VERSION \
  (SCAPE_VERSION_MAJOR * 10000 + SCAPE_VERSION_MINOR * 100 + SCAPE_VERSION_PATCH)
