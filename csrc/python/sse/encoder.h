/* Encoder: what one answer's encoder does at each token. */
#pragma once

#include "python/module.h"

extern PyType_Spec tw_encoder_spec;
