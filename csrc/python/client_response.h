/* Answer: what a load client sees of one answer after the other on one connection (client_response.h). */
#pragma once

#include "python/module.h"

extern PyType_Spec tw_answer_spec;
