/* Visibility and the compiler attributes that the public headers use. */
#ifndef ROOMKEEPER_EXPORT_H
#define ROOMKEEPER_EXPORT_H

#if defined(__GNUC__)
#define RK_API __attribute__((visibility("default")))
#define RK_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define RK_MUST_CHECK __attribute__((warn_unused_result))
#else
#define RK_API
#define RK_PRINTF(fmt, args)
#define RK_MUST_CHECK
#endif

#endif
