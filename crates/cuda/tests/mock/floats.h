// Numbers of 16 bits, and those rounded to TF32, as doubles, for the mocks of libraries.

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline double bf16_value(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint16_t bf16_bits(double value) {
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline double half_value(uint16_t half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half >> 15 ? -size : size;
}

static inline uint16_t half_bits(double value) {
    if (value != value) return 0x7e00;
    int exponent = value == 0 ? -14 : (int)floor(log2(fabs(value)));
    if (exponent < -14) exponent = -14;
    double steps = nearbyint(ldexp(fabs(value), 10 - exponent));  // 1024 to 2048 where normal
    uint16_t bits = steps >= 2048 || steps < 1024 ? (uint16_t)(steps + (exponent + 14) * 1024) : (uint16_t)((exponent + 15) * 1024 + steps - 1024);
    return (value < 0 ? 0x8000 : 0) | (exponent > 15 ? 0x7c00 : bits);
}

// To 10 bits of fraction, to nearest even.
static inline double tf32(double value) {
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits >> 23 & 255) == 255) return x;
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, 4);
    return x;
}
