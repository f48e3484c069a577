/* Multimodal inputs as Python objects: plain tuples, each tensor's bytes in a bytearray of its own, which
 * torch can use as it is. GIL; it is let go of while bytes are copied, so that this may be done beside the
 * loop. */
#include <errno.h>
#include <string.h>

#include "module.h"

/* A copy that is shorter is over before another thread could have begun. */
#define ALONE_BYTES ((size_t)64 * 1024)

/* What a read that failed says to the client, by way of the request's failure. */
static PyObject *unreadable(int error) {
    if (error == -ENODATA)
        PyErr_SetString(PyExc_ValueError, "a shm segment has been cut short since it was handed over");
    else
        PyErr_Format(PyExc_OSError, "a tensor's bytes cannot be read: %s", strerror(-error));
    return NULL;
}

static PyObject *bytes_object(const rk_request *request, const rk_tensor *tensor) {
    PyObject *array = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)tensor->nbytes);
    char *to = array ? PyByteArray_AsString(array) : NULL;
    int result = 0;
    if (!array)
        return NULL;
    if (tensor->nbytes < ALONE_BYTES) {
        result = rk_request_read_tensor(request, tensor, to);
    } else {
        Py_BEGIN_ALLOW_THREADS result = rk_request_read_tensor(request, tensor, to);
        Py_END_ALLOW_THREADS
    }
    if (result == 0)
        return array;
    Py_DECREF(array);
    return unreadable(result);
}

static PyObject *remote_object(const rk_tensor *tensor) {
    return Py_BuildValue("(s#y#n)", tensor->transport.data, (Py_ssize_t)tensor->transport.bytes,
                         (const char *)tensor->descriptor, (Py_ssize_t)tensor->descriptor_bytes,
                         (Py_ssize_t)tensor->nbytes);
}

static PyObject *shape_object(const rk_tensor *tensor) {
    PyObject *shape = PyTuple_New((Py_ssize_t)tensor->dims);
    for (size_t i = 0; shape && i < tensor->dims; i++) {
        PyObject *size = PyLong_FromUnsignedLong(tensor->shape[i]);
        if (size)
            (void)PyTuple_SetItem(shape, (Py_ssize_t)i, size);
        else
            Py_CLEAR(shape);
    }
    return shape;
}

/* N takes over an object, and a NULL one fails the whole. */
static PyObject *tensor_object(const rk_request *request, const rk_tensor *tensor) {
    PyObject *payload =
        tensor->payload == RK_PAYLOAD_REMOTE ? remote_object(tensor) : bytes_object(request, tensor);
    if (!payload)
        return NULL;
    return Py_BuildValue("(sNN)", tensor->dtype, shape_object(tensor), payload);
}

static PyObject *tensors_object(const rk_request *request, const rk_media *media) {
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < media->tensor_count; i++) {
        const rk_named_tensor *named = &media->tensors[i];
        PyObject *name = PyUnicode_FromStringAndSize(named->name.data, (Py_ssize_t)named->name.bytes);
        PyObject *tensor = name ? tensor_object(request, &named->tensor) : NULL;
        if (!tensor || PyDict_SetItem(dict, name, tensor) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(name);
        Py_XDECREF(tensor);
    }
    return dict;
}

static PyObject *ranges_object(const rk_media *media) {
    PyObject *list = PyList_New((Py_ssize_t)media->placeholder_count);
    for (size_t i = 0; list && i < media->placeholder_count; i++) {
        const rk_placeholder *range = &media->placeholders[i];
        PyObject *pair = Py_BuildValue("(kk)", (unsigned long)range->offset, (unsigned long)range->length);
        if (pair)
            (void)PyList_SetItem(list, (Py_ssize_t)i, pair);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *encoder_object(const rk_media *media) {
    if (!media->has_encoder)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(s#iL)", media->encoder_host.data, (Py_ssize_t)media->encoder_host.bytes,
                         (int)media->encoder_port, (long long)media->encoder_room);
}

static PyObject *media_object(const rk_request *request, const rk_media *media) {
    PyObject *input =
        media->has_encoder_input ? tensor_object(request, &media->encoder_input) : Py_NewRef(Py_None);
    if (!input)
        return NULL;
    PyObject *tensors = tensors_object(request, media);
    if (!tensors) {
        Py_DECREF(input);
        return NULL;
    }
    PyObject *token_id = media->has_token_id ? PyLong_FromUnsignedLong(media->token_id) : Py_NewRef(Py_None);
    return Py_BuildValue("(iy#NNNNN)", (int)media->modality, (const char *)media->content_hash,
                         (Py_ssize_t)media->content_hash_bytes, input, tensors, ranges_object(media),
                         token_id, encoder_object(media));
}

PyObject *rk_py_take_media(rk_request *request) {
    PyObject *list = PyList_New((Py_ssize_t)request->media_count);
    for (size_t i = 0; list && i < request->media_count; i++) {
        PyObject *media = media_object(request, &request->media[i]);
        if (media)
            (void)PyList_SetItem(list, (Py_ssize_t)i, media);
        else
            Py_CLEAR(list);
    }
    rk_request_drop_payloads(request);
    return list;
}
