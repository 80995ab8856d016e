/* tailwatch._hot.Plan: an object of known shape is compared with what was learned, and its JSON written, in one walk.
 *
 * A shape is a list of nodes in the order in which the walk meets them. Every value that the object holds is met: it is
 * compared with its node, or written from the object itself. Nothing is remembered from one object to the next. No
 * Python code is called, as long as the names of the fields set are plain strings.
 */
#include "python/sse/shape_writer.h"

#include <string.h>
#include <structmember.h>

typedef enum tw_plan_kind {
    /* of a shape: the nodes of its parts follow a node */
    NODE_MODEL,    /* subject: class; keys: its __dict__, in order; fields_set or NULL; number: 1 where an extra dict follows */
    NODE_DICT,     /* keys, in order */
    NODE_LIST,     /* number: length */
    NODE_CONSTANT, /* subject: the value itself, or one of the same type that equals it */
    NODE_TEXT,     /* number: hole; falsy: "" is one of them */
    NODE_NUMBER,   /* the same; falsy: 0 is one of them */
    /* of a path to one value, whatever stands beside it: one node follows */
    NODE_FIELD,    /* subject: class; keys: one field */
    NODE_EXTRA,    /* the same, among the fields that the class does not have */
    NODE_KEY,      /* of a dict: keys: one */
    NODE_ITEM,     /* of a list: number: which */
    NODE_TYPE,     /* the end: subject: its type */
    NODE_LONGER,   /* the end: a list; number: longer than this */
    NODE_KINDS
} tw_plan_kind;

static const char *const kind_names[NODE_KINDS] = {"model", "dict",  "list", "constant", "text", "number",
                                                   "field", "extra", "key",  "item",     "type", "longer"};

struct tw_plan_node {
    tw_plan_kind kind;
    bool falsy;
    Py_ssize_t number, n_keys;
    PyObject *subject, *fields_set; /* a tuple of names, each once */
    PyObject **keys;
};

/* ---- reading an object ---- */

typedef const tw_plan_node *(*reader)(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading);

static const tw_plan_node *read_value(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading);

/* The value stays alive while it is walked, whatever a hostile __eq__ does. Most values are a None that was learned. */
static inline const tw_plan_node *read_held(PlanObject *plan, const tw_plan_node *node, PyObject *value,
                                            tw_plan_reading *reading) {
    if (node->kind == NODE_CONSTANT && node->subject == value) return node + 1;
    if (value == NULL) return NULL;
    Py_INCREF(value);
    node = read_value(plan, node, value, reading);
    Py_DECREF(value);
    return node;
}

static inline bool same_text(PyObject *a, PyObject *b) {
    return PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b) && PyUnicode_Compare(a, b) == 0;
}

/* Keys are interned, as a rule: the same object. */
static const tw_plan_node *read_entries(PlanObject *plan, const tw_plan_node *node, PyObject *dict, tw_plan_reading *reading) {
    const tw_plan_node *next = node + 1;
    Py_ssize_t position = 0;
    PyObject *key, *value;
    if (PyDict_Size(dict) != node->n_keys) return NULL;
    for (Py_ssize_t i = 0; i < node->n_keys && next != NULL; i++) {
        if (!PyDict_Next(dict, &position, &key, &value)) return NULL;
        if (key != node->keys[i] && !same_text(key, node->keys[i])) return NULL;
        next = read_held(plan, next, value, reading);
    }
    return next;
}

static const tw_plan_node *read_dict(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    return PyDict_CheckExact(value) ? read_entries(plan, node, value, reading) : NULL;
}

/* None and {} are the same: no more fields than the class has. */
static const tw_plan_node *read_extra(PlanObject *plan, const tw_plan_node *node, const tw_plan_node *next, PyObject *value,
                                      tw_plan_reading *reading) {
    PyObject *extra = plan->get_extra(plan->extra, value, (PyObject *)Py_TYPE(value));
    if (extra == NULL) return NULL;
    if (node->number) next = read_value(plan, next, extra, reading);
    else if (extra != Py_None && !(PyDict_CheckExact(extra) && PyDict_Size(extra) == 0)) next = NULL;
    Py_DECREF(extra);
    return next;
}

/* Asked name by name: half of what the set's own comparison takes. */
static bool same_set(PyObject *set, PyObject *learned) {
    const Py_ssize_t n = PyTuple_Size(learned);
    if (!Py_IS_TYPE(set, &PySet_Type) || PySet_Size(set) != n) return false;
    for (Py_ssize_t i = 0; i < n; i++)
        if (PySet_Contains(set, PyTuple_GetItem(learned, i)) != 1) return false;
    return true;
}

static bool same_fields_set(PlanObject *plan, const tw_plan_node *node, PyObject *value) {
    if (node->fields_set == NULL) return true;
    PyObject *set = plan->get_fields_set(plan->fields_set, value, (PyObject *)Py_TYPE(value));
    const bool same = set != NULL && same_set(set, node->fields_set);
    Py_XDECREF(set);
    return same;
}

static const tw_plan_node *read_model(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    if ((PyObject *)Py_TYPE(value) != node->subject) return NULL;
    PyObject *dict = PyObject_GenericGetDict(value, NULL);
    if (dict == NULL) return NULL;
    const tw_plan_node *next = read_entries(plan, node, dict, reading);
    Py_DECREF(dict);
    if (next != NULL) next = read_extra(plan, node, next, value, reading);
    return next != NULL && same_fields_set(plan, node, value) ? next : NULL;
}

static const tw_plan_node *read_list(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    const tw_plan_node *next = node + 1;
    if (!PyList_CheckExact(value) || PyList_Size(value) != node->number) return NULL;
    for (Py_ssize_t i = 0; i < node->number && next != NULL; i++)
        next = read_held(plan, next, PyList_GetItem(value, i), reading);
    return next;
}

/* Equality is asked of plain strings and integers only: of all else, identity. */
static const tw_plan_node *read_constant(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    (void)plan, (void)reading;
    if (value == node->subject) return node + 1;
    if (!Py_IS_TYPE(value, Py_TYPE(node->subject)) || !(PyUnicode_CheckExact(value) || PyLong_CheckExact(value))) return NULL;
    return PyObject_RichCompareBool(value, node->subject, Py_EQ) == 1 ? node + 1 : NULL;
}

static inline tw_plan_value *hold(const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    tw_plan_value *slot = &reading->values[node->number];
    slot->held = Py_NewRef(value);
    reading->order[reading->held++] = (uint32_t)node->number;
    return slot;
}

static const tw_plan_node *read_text(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    (void)plan;
    Py_ssize_t len;
    if (!PyUnicode_CheckExact(value)) return NULL;
    const char *text = PyUnicode_AsUTF8AndSize(value, &len);
    if (text == NULL || (len == 0 && !node->falsy)) return NULL;
    hold(node, value, reading)->filling = (tw_filling){text, (size_t)len, 0, false};
    return node + 1;
}

static void write_number(long long number, tw_plan_value *slot) {
    unsigned long long left = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
    char *const end = slot->digits + sizeof slot->digits, *at = end;
    do *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (number < 0) *--at = '-';
    slot->filling = (tw_filling){at, (size_t)(end - at), 0, true};
}

static const tw_plan_node *read_number(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    (void)plan;
    int overflow;
    if (!PyLong_CheckExact(value)) return NULL;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || (number == 0 && !node->falsy)) return NULL;
    write_number(number, hold(node, value, reading));
    return node + 1;
}

/* ---- a path ---- */

static const tw_plan_node *follow(PlanObject *plan, const tw_plan_node *node, PyObject *dict, tw_plan_reading *reading) {
    PyObject *value = PyDict_CheckExact(dict) ? PyDict_GetItemWithError(dict, node->keys[0]) : NULL;
    return read_held(plan, node + 1, value, reading);
}

static const tw_plan_node *read_field(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    if ((PyObject *)Py_TYPE(value) != node->subject) return NULL;
    PyObject *dict = node->kind == NODE_FIELD ? PyObject_GenericGetDict(value, NULL)
                                              : plan->get_extra(plan->extra, value, node->subject);
    if (dict == NULL) return NULL;
    node = follow(plan, node, dict, reading);
    Py_DECREF(dict);
    return node;
}

static Py_ssize_t length_of(PyObject *value) { return PyList_CheckExact(value) ? PyList_Size(value) : -1; }

static const tw_plan_node *read_item(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    if (length_of(value) <= node->number) return NULL;
    return read_held(plan, node + 1, PyList_GetItem(value, node->number), reading);
}

static const tw_plan_node *read_type(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    (void)plan, (void)reading;
    return (PyObject *)Py_TYPE(value) == node->subject ? node + 1 : NULL;
}

static const tw_plan_node *read_longer(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    (void)plan, (void)reading;
    return length_of(value) > node->number ? node + 1 : NULL;
}

static const reader readers[NODE_KINDS] = {read_model, read_dict,  read_list, read_constant, read_text, read_number,
                                           read_field, read_field, follow,    read_item,     read_type, read_longer};

static const tw_plan_node *read_value(PlanObject *plan, const tw_plan_node *node, PyObject *value, tw_plan_reading *reading) {
    return readers[node->kind](plan, node, value, reading);
}

int plan_read(PlanObject *plan, PyObject *object, tw_plan_reading *reading) {
    reading->held = 0;
    if (read_value(plan, plan->nodes, object, reading) != NULL) return 1;
    return PyErr_Occurred() == NULL ? 0 : -1;
}

void plan_forget(tw_plan_reading *reading) {
    while (reading->held > 0) Py_DECREF(reading->values[reading->order[--reading->held]].held);
}

/* ---- writing its text ---- */

static size_t text_len(const PlanObject *plan, tw_plan_reading *reading) {
    size_t len = plan->cut[plan->holes];
    for (uint32_t i = 0; i < plan->holes; i++) {
        tw_filling *filling = &reading->values[i].filling;
        filling->escaped = filling->verbatim ? filling->len : tw_json_escaped_len(TW_DIALECT_UTF8, filling->text, filling->len);
        len += filling->escaped;
    }
    return len;
}

static char *put(const char *from, size_t len, char *out) {
    memcpy(out, from, len);
    return out + len;
}

static char *fill(const tw_filling *filling, char *out) {
    if (filling->escaped == filling->len) return put(filling->text, filling->len, out);
    return out + tw_json_escape(TW_DIALECT_UTF8, filling->text, filling->len, out);
}

static void write_text(const PlanObject *plan, const tw_plan_reading *reading, char *out) {
    const char *literal = PyBytes_AsString(plan->literal);
    uint32_t from = 0;
    for (uint32_t i = 0; i < plan->holes; i++) {
        out = put(literal + from, plan->cut[i] - from, out);
        out = fill(&reading->values[i].filling, out);
        from = plan->cut[i];
    }
    put(literal + from, plan->cut[plan->holes] - from, out);
}

PyObject *plan_text(PlanObject *plan, tw_plan_reading *reading) {
    char near[2048];
    const size_t len = text_len(plan, reading);
    char *out = len <= sizeof near ? near : PyMem_Malloc(len);
    if (out == NULL) return PyErr_NoMemory();
    write_text(plan, reading, out);
    PyObject *text = PyUnicode_DecodeUTF8(out, (Py_ssize_t)len, "strict");
    if (out != near) PyMem_Free(out);
    return text;
}

/* ---- the type ---- */

static int refuse(const char *what) {
    PyErr_Format(PyExc_ValueError, "Plan: %s", what);
    return -1;
}

static int take_kind(tw_plan_node *node, const char *name) {
    for (int i = 0; i < NODE_KINDS; i++) {
        if (strcmp(kind_names[i], name) != 0) continue;
        node->kind = (tw_plan_kind)i;
        return 0;
    }
    return refuse("no such kind of node");
}

static int take_keys(tw_plan_node *node, PyObject *keys) {
    const Py_ssize_t n = PyTuple_Size(keys);
    node->keys = PyMem_Calloc((size_t)n + 1, sizeof *node->keys);
    if (node->keys == NULL) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *key = PyTuple_GetItem(keys, i);
        if (!PyUnicode_CheckExact(key)) return refuse("a key is no str");
        node->keys[node->n_keys++] = Py_NewRef(key);
    }
    return 0;
}

/* (kind, subject, keys, fields_set | None, number, falsy) */
static int take_node(tw_plan_node *node, PyObject *given) {
    const char *kind;
    PyObject *subject, *keys, *fields_set;
    int falsy;
    if (!PyTuple_Check(given)) return refuse("a node is a tuple");
    if (!PyArg_ParseTuple(given, "sOO!Onp", &kind, &subject, &PyTuple_Type, &keys, &fields_set, &node->number, &falsy)) return -1;
    if (fields_set != Py_None && !PyFrozenSet_CheckExact(fields_set)) return refuse("fields_set is a frozenset or None");
    node->subject = Py_NewRef(subject);
    node->fields_set = fields_set == Py_None ? NULL : PySequence_Tuple(fields_set);
    if (node->fields_set == NULL && fields_set != Py_None) return -1;
    node->falsy = falsy != 0;
    return take_kind(node, kind) < 0 ? -1 : take_keys(node, keys);
}

static int take_nodes(PlanObject *self, PyObject *given) {
    const Py_ssize_t n = PyTuple_Size(given);
    if (n < 1 || n > TW_PLAN_NODES) return refuse("expected 1 to 1024 nodes");
    if ((self->nodes = PyMem_Calloc((size_t)n, sizeof *self->nodes)) == NULL) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (self->count++, take_node(&self->nodes[i], PyTuple_GetItem(given, i)) < 0) return -1;
    return 0;
}

static Py_ssize_t parts_of(const tw_plan_node *node) {
    switch (node->kind) {
    case NODE_MODEL: return node->n_keys + (node->number != 0);
    case NODE_DICT: return node->n_keys;
    case NODE_LIST: return node->number;
    case NODE_FIELD:
    case NODE_EXTRA:
    case NODE_KEY:
    case NODE_ITEM: return 1;
    default: return 0;
    }
}

static int check_node(const PlanObject *self, const tw_plan_node *node, uint64_t *filled) {
    const bool hole = node->kind == NODE_TEXT || node->kind == NODE_NUMBER;
    const bool named = node->kind == NODE_FIELD || node->kind == NODE_EXTRA || node->kind == NODE_KEY;
    if (node->number < 0 || node->number > (hole ? (Py_ssize_t)TW_PLAN_HOLES - 1 : PY_SSIZE_T_MAX / 2)) return refuse("a number out of range");
    if (named && node->n_keys != 1) return refuse("a path names one key at a time");
    if (!hole) return 0;
    if ((Py_ssize_t)self->holes <= node->number && self->literal != NULL) return refuse("a hole beyond the literal's");
    if (*filled >> node->number & 1) return refuse("a hole filled twice");
    *filled |= UINT64_C(1) << node->number;
    return 0;
}

/* A tree whose parts are all there, whatever the match will meet. */
static int check_tree(const PlanObject *self, uint32_t *at, int depth, uint64_t *filled) {
    if (*at >= self->count) return refuse("nodes are missing");
    if (depth > TW_PLAN_DEPTH) return refuse("nodes within nodes, too deep");
    const tw_plan_node *node = &self->nodes[(*at)++];
    if (check_node(self, node, filled) < 0) return -1;
    for (Py_ssize_t i = parts_of(node); i > 0; i--)
        if (check_tree(self, at, depth + 1, filled) < 0) return -1;
    return 0;
}

static int check_nodes(const PlanObject *self) {
    uint32_t at = 0;
    uint64_t filled = 0;
    if (check_tree(self, &at, 0, &filled) < 0) return -1;
    if (at != self->count) return refuse("nodes are left over");
    const uint64_t all = self->holes == 64 ? UINT64_MAX : (UINT64_C(1) << self->holes) - 1;
    return self->literal == NULL || filled == all ? 0 : refuse("a hole that nothing fills");
}

static int take_cuts(PlanObject *self, PyObject *cuts) {
    const Py_ssize_t n = PyTuple_Size(cuts), len = PyBytes_Size(self->literal);
    Py_ssize_t last = 0;
    if (n > TW_PLAN_HOLES || len > UINT32_MAX / 2) return refuse("too many holes, or too long");
    for (Py_ssize_t i = 0; i < n; i++) {
        const Py_ssize_t cut = PyLong_AsSsize_t(PyTuple_GetItem(cuts, i));
        if (cut == -1 && PyErr_Occurred()) return -1;
        if (cut < last || cut > len) return refuse("a hole outside the literal or before the last hole");
        self->cut[i] = (uint32_t)(last = cut);
    }
    self->holes = (uint32_t)n;
    self->cut[n] = (uint32_t)len;
    return 0;
}

static descrgetfunc take_slot(PyObject **slot, PyObject *descriptor) {
    descrgetfunc get = (descrgetfunc)PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get);
    if (get == NULL) refuse("a slot is no descriptor");
    *slot = Py_NewRef(descriptor);
    return get;
}

static int plan_init(PlanObject *self, PyObject *nodes, PyObject *fields_set, PyObject *extra, PyObject *cuts) {
    if ((self->get_fields_set = take_slot(&self->fields_set, fields_set)) == NULL) return -1;
    if ((self->get_extra = take_slot(&self->extra, extra)) == NULL) return -1;
    if (self->literal != NULL && take_cuts(self, cuts) < 0) return -1;
    return take_nodes(self, nodes) < 0 ? -1 : check_nodes(self);
}

/* Plan(name, nodes, (fields_set, extra), literal | None, cuts) */
static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "nodes", "slots", "literal", "cuts", NULL};
    PyObject *name, *nodes, *fields_set, *extra, *literal, *cuts;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO!(OO)OO!", names, &name, &PyTuple_Type, &nodes, &fields_set, &extra,
                                     &literal, &PyTuple_Type, &cuts)) return NULL;
    if (literal != Py_None && !PyBytes_CheckExact(literal)) return refuse("literal is bytes or None"), NULL;
    PlanObject *self = (PlanObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) return NULL;
    self->name = Py_NewRef(name);
    self->literal = literal == Py_None ? NULL : Py_NewRef(literal);
    if (plan_init(self, nodes, fields_set, extra, cuts) == 0) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

/* No tp_clear: a plan never changes, so a cycle through it goes through the class's dict or a function too. */
static int plan_traverse(PyObject *op, visitproc visit, void *arg) {
    PlanObject *self = (PlanObject *)op;
    Py_VISIT((PyObject *)Py_TYPE(op));
    for (uint32_t i = 0; i < self->count; i++) Py_VISIT(self->nodes[i].subject);
    Py_VISIT(self->fields_set);
    Py_VISIT(self->extra);
    return 0;
}

static void release_node(tw_plan_node *node) {
    for (Py_ssize_t i = 0; i < node->n_keys; i++) Py_DECREF(node->keys[i]);
    PyMem_Free(node->keys);
    Py_XDECREF(node->subject);
    Py_XDECREF(node->fields_set);
}

static void plan_dealloc(PyObject *op) {
    PlanObject *self = (PlanObject *)op;
    PyObject_GC_UnTrack(op);
    for (uint32_t i = 0; i < self->count; i++) release_node(&self->nodes[i]);
    PyMem_Free(self->nodes);
    Py_XDECREF(self->name);
    Py_XDECREF(self->literal);
    Py_XDECREF(self->fields_set);
    Py_XDECREF(self->extra);
    hot_free(op);
}

static PyObject *plan_render(PyObject *op, PyObject *object) {
    PlanObject *self = (PlanObject *)op;
    tw_plan_reading reading;
    PyObject *text = NULL;
    const int found = plan_read(self, object, &reading);
    if (found == 1 && self->literal != NULL) text = plan_text(self, &reading);
    plan_forget(&reading);
    if (text != NULL || PyErr_Occurred()) return text;
    Py_RETURN_NONE;
}

static PyObject *plan_matches(PyObject *op, PyObject *object) {
    tw_plan_reading reading;
    const int found = plan_read((PlanObject *)op, object, &reading);
    plan_forget(&reading);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

static PyObject *plan_retire(PyObject *op, PyObject *unused) {
    (void)unused;
    ((PlanObject *)op)->retired = true;
    Py_RETURN_NONE;
}

static PyMethodDef plan_methods[] = {
    {"render", plan_render, METH_O, "render(object, /)\n--\n\nIts text; None where it has another shape, or the plan none."},
    {"matches", plan_matches, METH_O, "matches(object, /)\n--\n\nWhether it has this shape."},
    {"retire", plan_retire, METH_NOARGS, "retire()\n--\n\nLeave objects of this shape to the original for good."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef plan_members[] = {
    {"name", T_OBJECT_EX, offsetof(PlanObject, name), READONLY, "What the shape is called."},
    {"literal", T_OBJECT, offsetof(PlanObject, literal), READONLY, "The bytes around the holes; None: left to the original."},
    {"holes", T_UINT, offsetof(PlanObject, holes), READONLY, "How many values are written from the object."},
    {"uses", T_ULONGLONG, offsetof(PlanObject, uses), READONLY, "How often Plans found this shape."},
    {"retired", T_BOOL, offsetof(PlanObject, retired), READONLY, "Whether its text was once not the original's."},
    {NULL, 0, 0, 0, NULL}};
static PyType_Slot plan_slots[] = {
    {Py_tp_doc, "How one shape of an object becomes JSON."},
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_traverse, plan_traverse},
    {Py_tp_methods, plan_methods},
    {Py_tp_members, plan_members},
    {0, NULL}};
PyType_Spec tw_plan_spec = {"tailwatch._hot.Plan", sizeof(PlanObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, plan_slots};
