/* Encoder: what one answer's encoder does at each token. */
#ifndef TAILWATCH_HOT_ENCODER_H
#define TAILWATCH_HOT_ENCODER_H

#include "hot.h"

extern PyType_Spec tw_encoder_spec;

#endif
