//! The storage types a GGUF tensor can have.

use std::fmt;
use std::str::FromStr;

macro_rules! types {
    ($($variant:ident = $id:literal, $name:literal, $values:literal, $bytes:literal, $doc:literal;)*) => {
        /// How the values of a tensor are stored. Types past [`GgmlType::is_readable`] are known by
        /// name and size alone: a file that holds them can be listed, not decoded.
        ///
        /// A row (the values along the first, fastest dimension) is a run of whole blocks; rows follow
        /// each other without padding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum GgmlType {
            $(#[doc = $doc] $variant = $id,)*
        }

        impl GgmlType {
            /// Every type, in the order of their ids.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The type with this id in a file; none if the format has no such type (any more).
            pub fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The lower-case name, as the command line takes it: `q4_k`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Values in one block.
            pub fn block_values(self) -> usize {
                match self {
                    $(Self::$variant => $values,)*
                }
            }

            /// Bytes of one block.
            pub fn block_bytes(self) -> usize {
                match self {
                    $(Self::$variant => $bytes,)*
                }
            }
        }
    };
}

types! {
    F32 = 0, "f32", 1, 4, "IEEE single.";
    F16 = 1, "f16", 1, 2, "IEEE half.";
    Q4_0 = 2, "q4_0", 32, 18, "4 bits, a scale for 32 values.";
    Q4_1 = 3, "q4_1", 32, 20, "4 bits, scale and minimum for 32 values.";
    Q5_0 = 6, "q5_0", 32, 22, "5 bits, a scale for 32 values.";
    Q5_1 = 7, "q5_1", 32, 24, "5 bits, scale and minimum for 32 values.";
    Q8_0 = 8, "q8_0", 32, 34, "8 bits, a scale for 32 values.";
    Q8_1 = 9, "q8_1", 32, 36, "8 bits for activations; listed only.";
    Q2K = 10, "q2_k", 256, 84, "2 bits, 16 groups of 16 with 4-bit scales and minima.";
    Q3K = 11, "q3_k", 256, 110, "3 bits, 16 groups of 16 with 6-bit scales.";
    Q4K = 12, "q4_k", 256, 144, "4 bits, 8 groups of 32 with 6-bit scales and minima.";
    Q5K = 13, "q5_k", 256, 176, "5 bits, 8 groups of 32 with 6-bit scales and minima.";
    Q6K = 14, "q6_k", 256, 210, "6 bits, 16 groups of 16 with 8-bit scales.";
    Q8K = 15, "q8_k", 256, 292, "8 bits for activations; listed only.";
    Iq2Xxs = 16, "iq2_xxs", 256, 66, "Listed only.";
    Iq2Xs = 17, "iq2_xs", 256, 74, "Listed only.";
    Iq3Xxs = 18, "iq3_xxs", 256, 98, "Listed only.";
    Iq1S = 19, "iq1_s", 256, 50, "Listed only.";
    Iq4Nl = 20, "iq4_nl", 32, 18, "4 bits on an uneven grid, a scale for 32 values.";
    Iq3S = 21, "iq3_s", 256, 110, "Listed only.";
    Iq2S = 22, "iq2_s", 256, 82, "Listed only.";
    Iq4Xs = 23, "iq4_xs", 256, 136, "4 bits on an uneven grid, 8 groups of 32 with 6-bit scales.";
    I8 = 24, "i8", 1, 1, "Listed only.";
    I16 = 25, "i16", 1, 2, "Listed only.";
    I32 = 26, "i32", 1, 4, "Listed only.";
    I64 = 27, "i64", 1, 8, "Listed only.";
    F64 = 28, "f64", 1, 8, "Listed only.";
    Iq1M = 29, "iq1_m", 256, 56, "Listed only.";
    Bf16 = 30, "bf16", 1, 2, "The upper half of an IEEE single.";
    Tq1_0 = 34, "tq1_0", 256, 54, "Listed only.";
    Tq2_0 = 35, "tq2_0", 256, 66, "Listed only.";
    Mxfp4 = 39, "mxfp4", 32, 17, "Listed only.";
    Nvfp4 = 40, "nvfp4", 64, 36, "Listed only.";
    Q1_0 = 41, "q1_0", 128, 18, "Listed only.";
}

impl GgmlType {
    /// The types that are decoded and made here.
    pub const READABLE: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
    ];

    /// Those of them whose values share scales in blocks.
    pub const QUANTIZED: [Self; 12] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
    ];

    /// The number that stands for the type in a tensor entry.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Whether values of this type can be decoded and made here.
    pub fn is_readable(self) -> bool {
        Self::READABLE.contains(&self)
    }

    /// Whether blocks share a scale, as opposed to plain numbers.
    pub fn is_quantized(self) -> bool {
        self.block_values() > 1
    }

    /// Whether the quantiser of this type looks at importances.
    pub fn uses_importance(self) -> bool {
        self.is_readable() && self.is_quantized() && self != Self::Q8_0
    }

    /// Storage per value, scales included.
    pub fn bits_per_value(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_values() as f64
    }

    /// Bytes of `values` values; none if they do not fill whole blocks or the count overflows.
    pub fn bytes_for(self, values: u64) -> Option<u64> {
        let per_block = self.block_values() as u64;
        if !values.is_multiple_of(per_block) {
            return None;
        }
        (values / per_block).checked_mul(self.block_bytes() as u64)
    }

    /// The value of `general.file_type` for a file quantised to this type, where one is defined.
    pub fn file_type(self) -> Option<u32> {
        Some(match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 7,
            Self::Q5_0 => 8,
            Self::Q5_1 => 9,
            Self::Q2K => 10,
            Self::Q3K => 12,
            Self::Q4K => 15,
            Self::Q5K => 17,
            Self::Q6K => 18,
            Self::Iq4Xs => 23,
            Self::Iq4Nl => 25,
            Self::Bf16 => 32,
            _ => return None,
        })
    }

    /// What a type that left the format was called.
    pub(crate) fn removed(id: u32) -> Option<&'static str> {
        Some(match id {
            4 => "Q4_2",
            5 => "Q4_3",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            _ => return None,
        })
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no type.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{0}' is no GGUF type; known: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs"
)]
pub struct UnknownType(pub String);

impl FromStr for GgmlType {
    type Err = UnknownType;

    /// Any case: `Q4_K` is `q4_k`.
    fn from_str(text: &str) -> Result<Self, UnknownType> {
        Self::ALL
            .iter()
            .find(|t| t.name().eq_ignore_ascii_case(text))
            .copied()
            .ok_or_else(|| UnknownType(crate::shown::shown(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_names_and_sizes_agree() {
        for &t in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(t.id()), Some(t));
            assert_eq!(t.name().to_uppercase().parse::<GgmlType>().unwrap(), t);
            assert!(GgmlType::removed(t.id()).is_none());
        }
        assert_eq!(GgmlType::from_id(4), None);
        assert!("q4_2".parse::<GgmlType>().is_err());
        assert_eq!(GgmlType::Q6K.bits_per_value(), 6.5625);
        assert_eq!(GgmlType::Q4K.bytes_for(512), Some(288));
        assert_eq!(GgmlType::Q4K.bytes_for(511), None);
        assert_eq!(GgmlType::F32.bytes_for(u64::MAX), None);
    }
}
