// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Placeholder until the owner of this file writes it.
