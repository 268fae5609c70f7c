/* What CPython's headers must know of a system that the wheel is built for, from the compiler
   itself: the pyconfig.h of the Python that builds would describe its own system. Only for the
   limited API, whose declarations need no more than this (scripts/wheels.py). */
#ifndef Py_PYCONFIG_H
#define Py_PYCONFIG_H

#define SIZEOF_SHORT __SIZEOF_SHORT__
#define SIZEOF_INT __SIZEOF_INT__
#define SIZEOF_LONG __SIZEOF_LONG__
#define SIZEOF_LONG_LONG __SIZEOF_LONG_LONG__
#define SIZEOF_VOID_P __SIZEOF_POINTER__
#define SIZEOF_SIZE_T __SIZEOF_SIZE_T__
#define SIZEOF_WCHAR_T __SIZEOF_WCHAR_T__
#define SIZEOF_FLOAT __SIZEOF_FLOAT__
#define SIZEOF_DOUBLE __SIZEOF_DOUBLE__
#define HAVE_WCHAR_H 1
#define HAVE_STDINT_H 1
#define HAVE_INTTYPES_H 1

#ifdef _WIN32
#define MS_WINDOWS
#define MS_WIN32
#ifdef _WIN64
#define MS_WIN64
#endif
#define SIZEOF_PID_T 4
#define SIZEOF_TIME_T 8
#define SIZEOF_OFF_T 4
/* The functions are in python3.dll, and the module's own is exported. */
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED
#define NT_THREADS
#include <basetsd.h>
typedef SSIZE_T Py_ssize_t;
#define HAVE_PY_SSIZE_T 1
#else
#define SIZEOF_PID_T 4
#define SIZEOF_TIME_T 8
#define SIZEOF_OFF_T 8
#define HAVE_SSIZE_T 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_UNISTD_H 1
#define HAVE_PTHREAD_H 1
#endif

#endif
