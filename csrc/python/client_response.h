/* Answer: what a load client sees of one answer after the other on one connection (client_response.h). */
#ifndef TAILWATCH_PYTHON_CLIENT_RESPONSE_H
#define TAILWATCH_PYTHON_CLIENT_RESPONSE_H

#include "python/module.h"

extern PyType_Spec tw_answer_spec;

#endif
