/* Reads the stacks of threads that call, return, raise and end, as the watchdog does, as often as asked. And a filter
 * of system calls that ends the process at a process_vm_readv(). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "frame_walk.c"
#include "safe_read.c"
#include "tailwatch/record/host_track.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define STATES 4

static tw_interpreter interpreter;
static uintptr_t states[STATES]; /* of threads, also of those that have ended */
static unsigned registered;

static PyObject *find(PyObject *module, PyObject *args) {
    PyObject *code;
    int minor;
    (void)module;
    if (!PyArg_ParseTuple(args, "iO", &minor, &code)) return NULL;
    return PyBool_FromLong(tw_interpreter_find(&interpreter, (uint32_t)minor,
                                               (uintptr_t)dlsym(RTLD_DEFAULT, "_PyRuntime"),
                                               (uintptr_t)PyInterpreterState_Get(), (uintptr_t)Py_TYPE(code), ""));
}

static PyObject *follow(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    __atomic_store_n(&states[registered++ % STATES], (uintptr_t)PyThreadState_Get(), __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* level_7 is called by level_6 only. */
static int is_consistent(const tw_python_frame *frames, uint32_t n) {
    int inner, outer;
    const char *name = n < 2 ? NULL : strstr(frames[0].function, "level_");
    if (name == NULL || sscanf(name, "level_%d", &inner) != 1 || inner == 0) return 1;
    name = strstr(frames[1].function, "level_");
    return name != NULL && sscanf(name, "level_%d", &outer) == 1 && outer == inner - 1;
}

/* walk(times) -> (accepted, inconsistent, of a level): without the GIL. */
static PyObject *walk(PyObject *module, PyObject *args) {
    tw_python_frame frames[TW_FRAMES];
    tw_reader reader;
    unsigned long long times, accepted = 0, wrong = 0, levels = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "K", &times)) return NULL;
    if (!tw_reader_open(&reader)) return PyErr_SetFromErrno(PyExc_OSError);
    Py_BEGIN_ALLOW_THREADS
    for (unsigned long long i = 0; i < times; i++) {
        const uintptr_t state = __atomic_load_n(&states[i % STATES], __ATOMIC_ACQUIRE);
        const uint32_t n = state == 0 ? 0 : tw_frames_read(&interpreter, &reader, state, frames, TW_STACK);
        accepted += n > 0;
        wrong += !is_consistent(frames, n);
        levels += n > 0 && strstr(frames[0].function, "level_") != NULL;
    }
    Py_END_ALLOW_THREADS
    tw_reader_close(&reader);
    return Py_BuildValue("KKK", accepted, wrong, levels);
}

/* From now on a process_vm_readv() ends this process, with SIGSYS. */
static PyObject *forbid(PyObject *module, PyObject *unused) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    (void)module, (void)unused;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"find", find, METH_VARARGS, "find(minor, code, /)\n--\n\nWhether this version is known."},
    {"follow", follow, METH_NOARGS, "follow()\n--\n\nThe calling thread's stack is read, also when it has ended."},
    {"walk", walk, METH_VARARGS, "walk(times, /)\n--\n\nRead stacks. (accepted, inconsistent, of a level)."},
    {"forbid", forbid, METH_NOARGS, "forbid()\n--\n\nprocess_vm_readv() kills."},
    {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "walkstress", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_walkstress(void) { return PyModule_Create(&definition); }
