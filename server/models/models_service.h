// The service resident.v1.Models.
#ifndef RESIDENT_SERVER_MODELS_MODELS_SERVICE_H_
#define RESIDENT_SERVER_MODELS_MODELS_SERVICE_H_

#include <memory>

#include "grpcpp/impl/service_type.h"
#include "server/models/models.h"

namespace resident {

// `models` must outlive the service.
std::unique_ptr<grpc::Service> MakeModelsService(Models& models);

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODELS_SERVICE_H_
