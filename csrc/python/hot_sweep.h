/* The closure sweep: the old heap collected in slices, by the collector itself.
 *
 * A slice takes seeds, follows what they refer to over tracked objects that are not frozen, up to a budget, moves what
 * it found to the young generation, and has that collected. A cycle that is dead and wholly inside dies; what lives is
 * old again, behind all others. Only what the collector itself finds unreachable is freed.
 */
#ifndef TAILWATCH_HOT_SWEEP_H
#define TAILWATCH_HOT_SWEEP_H

#include "hot_group.h"

#include "tailwatch/addresses.h"

extern PyType_Spec tw_sweep_spec;

#endif
