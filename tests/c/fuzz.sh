#!/bin/sh
# Long fuzzing of what reads and writes foreign bytes: libFuzzer, address and undefined behaviour sanitizers.
#
#     tests/c/fuzz.sh [-n EXECUTIONS] [-o DIRECTORY] [-k] [TARGET...]
#
# TARGET      sse (the encoder), scan (the scanner) or exposition (the metrics); all, one after the other, if none is given
# -n          executions of each target; 1000000 if not given
# -o          where programs, logs, grown corpora and what was found (TARGET-crash-...) stay; build/fuzz if not given
# -k          keep: afterwards choose, for tests/c/corpus/TARGET, the few inputs that together reach all code that was
#             reached; those that stand there by a name of their own stay
# CLANG       the compiler; clang if not set
#
# A run starts from tests/c/corpus/TARGET and from what earlier runs left in DIRECTORY. The tests test_sse_fuzz,
# test_scan_fuzz and test_prom_exposition_fuzz run the kept inputs with any compiler. A finding becomes a C test first, then is mended. Exits 1 if
# something was found.
set -eu

executions=1000000 out=build/fuzz keep=
usage() { echo "usage: $0 [-n EXECUTIONS] [-o DIRECTORY] [-k] [sse|scan|exposition ...]" >&2; exit 2; }
while getopts n:o:k option; do
    case $option in
    n) executions=$OPTARG ;;
    o) out=$OPTARG ;;
    k) keep=1 ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- sse scan exposition

root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
export ASAN_OPTIONS=quarantine_size_mb=1:detect_leaks=0:malloc_context_size=2

# The longest input: long enough for the widest vector loop, or for several events.
longest() { case $1 in sse) echo 260 ;; scan) echo 600 ;; exposition) echo 700 ;; *) usage ;; esac; }

sources() {
    case $1 in exposition) ls "$root"/csrc/{base,wire,gc,record,attribute,stamp,aggregate,group,trace,export}/*.c ;; *) ls "$root/csrc/wire/sse_encode.c" "$root"/csrc/wire/{body_scan,scan_event,scan_whole}.c ;; esac
}

build() {
    # shellcheck disable=SC2046 # no blanks in our names
    "${CLANG:-clang}" -g -O2 -D_GNU_SOURCE -Wall -Wextra -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        -I"$root/csrc/include" -I"$root/csrc" "$root/tests/c/fuzz_$1.c" $(sources "$1") \
        -lm -pthread -o "$out/fuzz_$1"
}

run() {
    mkdir -p "$out/$1"
    "$out/fuzz_$1" -runs="$executions" -max_len="$(longest "$1")" -print_final_stats=1 -reload=0 \
        -artifact_prefix="$out/$1-" "$out/$1" "$root/tests/c/corpus/$1" > "$out/$1.log" 2>&1 ||
        { tail -n 40 "$out/$1.log"; exit 1; }
    sed -n 's/^stat::/'"$1"' /p' "$out/$1.log"
}

keep() {
    rm -rf "$out/kept"
    mkdir "$out/kept"
    "$out/fuzz_$1" -set_cover_merge=1 -use_counters=0 -max_len="$(longest "$1")" "$out/kept" "$root/tests/c/corpus/$1" "$out/$1" \
        > "$out/$1-merge.log" 2>&1
    find "$root/tests/c/corpus/$1" -type f -name '????????????????????????????????????????' -delete
    cp "$out/kept"/* "$root/tests/c/corpus/$1"
}

for target; do
    longest "$target" > /dev/null
    build "$target"
    run "$target"
    [ -z "$keep" ] || keep "$target"
done
