// What most tests include besides library_headers.h: GoogleTest, gRPC and Protobuf.
#include "bazel/headers/library_headers.h"
#include "gmock/gmock.h"
#include "google/protobuf/map.h"
#include "google/protobuf/message.h"
#include "google/protobuf/repeated_field.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
