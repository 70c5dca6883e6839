# SPDX-License-Identifier: Apache-2.0
# Uses scape in the given WAY from a project in the empty folder WORK.
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(WAY STREQUAL "copied_headers")
  file(COPY ${SOURCE}/include DESTINATION ${WORK})
  run(${CXX} -std=c++20 -I ${WORK}/include ${SOURCE}/tests/consumer/project/main.cpp
      -o ${WORK}/consumer -pthread)
  run(${WORK}/consumer)
  return()
endif()

set(arguments -DWAY=${WAY})
if(WAY STREQUAL "installed_package")
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
  list(APPEND arguments -DCMAKE_PREFIX_PATH=${WORK}/prefix)
elseif(WAY STREQUAL "build_tree_package")
  list(APPEND arguments -DCMAKE_PREFIX_PATH=${BUILD})
else()
  list(APPEND arguments -DSCAPE_SOURCE=${SOURCE})
endif()
run(${CMAKE_COMMAND} -S ${SOURCE}/tests/consumer/project -B ${WORK}/build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX} -DVERSION=${VERSION} ${arguments})
run(${CMAKE_COMMAND} --build ${WORK}/build --target run)
