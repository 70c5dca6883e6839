# SPDX-License-Identifier: Apache-2.0
# The README shows examples/quickstart whole and unchanged.
file(READ "${README}" readme)
file(READ "${QUICKSTART}" quickstart)
string(FIND "${readme}" "```cpp\n${quickstart}```" place)
if(place EQUAL -1)
  message(FATAL_ERROR "README.md does not show ${QUICKSTART} as it is")
endif()
