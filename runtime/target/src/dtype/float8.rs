//! The two 8-bit floats: their codes as numbers, and numbers rounded to them.
//!
//! In: an f32, or a code of eight bits. Out: the code, or the f32 that it stands for. Invariant:
//! rounding is to nearest, ties to even, once; a number beyond the largest one becomes NaN in
//! `f8e4m3`, which has no infinity, and an infinity in `f8e5m2`.

/// How the eight bits after the sign are divided.
struct Format {
    /// Bits of the fraction.
    fraction: u32,
    bias: i32,
    /// The code of the largest finite number; what is above rounds to `beyond`.
    largest: u8,
    beyond: u8,
}

const E4M3: Format = Format { fraction: 3, bias: 7, largest: 0x7e, beyond: NAN };
const E5M2: Format = Format { fraction: 2, bias: 15, largest: 0x7b, beyond: 0x7c };
/// The code of a positive NaN that conversions give, in both formats.
const NAN: u8 = 0x7f;
const SIGN: u8 = 0x80;

/// A number of 4 bits of exponent and 3 of fraction, without infinities: `float8_e4m3fn` of
/// PyTorch, `FLOAT8E4M3FN` of ONNX.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// A number of 5 bits of exponent and 2 of fraction: the upper half of an f16.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(u8);

macro_rules! conversions {
    ($ty:ident, $format:ident, $values:ident) => {
        static $values: [f32; 256] = values(&$format);

        impl $ty {
            /// The number of that code.
            pub fn from_bits(code: u8) -> $ty {
                $ty(code)
            }

            /// The code.
            pub fn to_bits(self) -> u8 {
                self.0
            }

            /// `value` rounded once.
            pub fn from_f32(value: f32) -> $ty {
                $ty(code(&$format, value))
            }

            /// The same number; exact.
            pub fn to_f32(self) -> f32 {
                $values[self.0 as usize]
            }

            /// The same number; exact.
            pub fn to_f64(self) -> f64 {
                f64::from(self.to_f32())
            }

            /// False for NaN and the infinities.
            pub fn is_finite(self) -> bool {
                self.0 & !SIGN <= $format.largest
            }
        }
    };
}
conversions!(F8E4M3, E4M3, E4M3_VALUES);
conversions!(F8E5M2, E5M2, E5M2_VALUES);

/// The code of the nearest number.
fn code(format: &Format, value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & SIGN;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    if magnitude.is_nan() {
        return sign | NAN;
    }
    // From the exponent of the smallest normal number on, codes are the upper bits of an f32, with
    // another bias. Below it, they count the smallest number.
    let normal = 1 - format.bias;
    let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
    let rounded = if exponent < normal {
        let unit = f32::from_bits(((127 + format.fraction as i32 - normal) as u32) << 23);
        (magnitude * unit).round_ties_even() as u32
    } else {
        let dropped = 23 - format.fraction;
        let bits = magnitude.to_bits();
        let up = (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
        ((bits + up) >> dropped) - (((127 - format.bias) as u32) << format.fraction)
    };
    sign | if rounded > u32::from(format.largest) { format.beyond } else { rounded as u8 }
}

/// What each code stands for.
const fn values(format: &Format) -> [f32; 256] {
    let mut all = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let magnitude = code as u32 & 0x7f;
        let exponent = magnitude >> format.fraction;
        let fraction = magnitude - (exponent << format.fraction);
        // 2^(e - bias - fraction bits): the unit in the last place.
        let place = if exponent == 0 { 1 } else { exponent as i32 } - format.bias - format.fraction as i32;
        let unit = f32::from_bits(((127 + place) as u32) << 23);
        let whole = if exponent == 0 { fraction } else { fraction + (1 << format.fraction) };
        let value = if magnitude <= format.largest as u32 {
            whole as f32 * unit
        } else if magnitude == format.beyond as u32 && format.beyond != NAN {
            f32::INFINITY
        } else {
            f32::NAN
        };
        all[code] = if code as u32 & SIGN as u32 != 0 { -value } else { value };
        code += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dtype::DType;

    fn round(name: &str, value: f32) -> (u8, f32) {
        match name {
            "f8e4m3" => (F8E4M3::from_f32(value).to_bits(), F8E4M3::from_f32(value).to_f32()),
            _ => (F8E5M2::from_f32(value).to_bits(), F8E5M2::from_f32(value).to_f32()),
        }
    }

    fn number(name: &str, code: u8) -> f32 {
        if name == "f8e4m3" { F8E4M3::from_bits(code).to_f32() } else { F8E5M2::from_bits(code).to_f32() }
    }

    #[test]
    fn codes_and_rounding_are_those_of_ml_dtypes() {
        let (mut codes, mut rounded) = (0, 0);
        for line in include_str!("float8.txt").lines().filter(|l| !l.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, bits) = (words[0], |s: &str| u32::from_str_radix(s.trim_end_matches(':'), 16).unwrap());
            if words[2] == "->" {
                let value = f32::from_bits(bits(words[1]));
                let (code, back) = round(name, value);
                match words[3] {
                    "nan" => assert!(back.is_nan(), "{line}"),
                    want => assert_eq!(u32::from(code), bits(want), "{line}: {value} became {back}"),
                }
                rounded += 1;
                continue;
            }
            for (i, want) in words[2..].iter().enumerate() {
                let got = number(name, bits(words[1]) as u8 + i as u8);
                assert!(if *want == "nan" { got.is_nan() } else { got.to_bits() == bits(want) }, "{line}: {i}: {got}");
                codes += 1;
            }
        }
        assert_eq!(codes, 512);
        assert!(rounded > 700, "{rounded}");
    }

    #[test]
    fn every_code_comes_back() {
        for name in ["f8e4m3", "f8e5m2"] {
            for code in 0..=255u8 {
                let (again, value) = round(name, number(name, code));
                assert!(again == code || value.is_nan(), "{name} {code:02x}");
                assert_eq!(again & SIGN, code & SIGN, "{name} {code:02x}");
            }
        }
    }

    /// Every 257th f32: the nearest number, found by search.
    #[test]
    fn rounding_is_to_nearest() {
        for (name, dtype) in [("f8e4m3", DType::F8E4M3), ("f8e5m2", DType::F8E5M2)] {
            let finite: Vec<(u8, f64)> = (0..128u8).map(|c| (c, f64::from(number(name, c)))).collect();
            let finite: Vec<(u8, f64)> = finite.into_iter().filter(|(_, v)| v.is_finite()).collect();
            let largest = dtype.largest();
            for bits in (0..0x7f80_0000u32).step_by(257) {
                let value = f64::from(f32::from_bits(bits));
                let got = round(name, value as f32).0;
                let at = finite.partition_point(|(_, v)| *v < value);
                let Some((above, next)) = finite.get(at) else {
                    // Beyond the largest number: half a step further it is still the nearest.
                    let step = largest - finite[finite.len() - 2].1;
                    let near = value < largest + step / 2.0 || (value == largest + step / 2.0 && name == "f8e4m3");
                    assert_eq!(got <= finite[finite.len() - 1].0, near, "{name} {value}");
                    continue;
                };
                let Some((below, last)) = at.checked_sub(1).map(|i| finite[i]) else {
                    assert_eq!(got, *above);
                    continue;
                };
                let (down, up) = (value - last, next - value);
                let want = if down < up || (down == up && below % 2 == 0) { below } else { *above };
                assert_eq!(got, want, "{name} {value}");
            }
        }
    }
}
