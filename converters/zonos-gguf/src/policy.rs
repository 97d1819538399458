//! Which type each tensor of a ZONOS2 file gets (`zonos2.md` 10.1).

use crate::GgmlType;

/// How a file is quantised.
///
/// What the experts compute is averaged over many weights and stands coarse storage; the router
/// decides by small differences, and everything else (the spine) runs for every token. A model that
/// is Q4_K throughout routes wrongly and agrees with the original one time in twenty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The type asked for.
    pub bulk: GgmlType,
    /// Only expert stacks get `bulk`; the rest Q8_0, or F16 by `spine_f16`.
    pub experts_only: bool,
    /// With `experts_only`: the rest is F16.
    pub spine_f16: bool,
    /// The down projections of the experts get the next K type up.
    pub down_tier_up: bool,
}

impl Policy {
    /// `bulk` for the experts, F16 for the spine: how the published files are made.
    pub fn recommended(bulk: GgmlType) -> Self {
        Self {
            experts_only: true,
            spine_f16: true,
            ..Self::everything(bulk)
        }
    }

    /// `bulk` wherever a tensor is not protected by name.
    pub fn everything(bulk: GgmlType) -> Self {
        Self {
            bulk,
            experts_only: false,
            spine_f16: false,
            down_tier_up: false,
        }
    }

    /// Whether attention and dense weights would get fewer than eight bits, which ruins routing; to
    /// be refused unless the user insists.
    pub fn starves_the_spine(&self) -> bool {
        !self.experts_only && self.bulk.bits_per_value() < 8.0
    }

    /// The type of one tensor; the first rule that fits decides. `dims` are fastest first, `stored`
    /// is the type it has now.
    pub fn storage_type(&self, name: &str, dims: &[u64], stored: GgmlType) -> GgmlType {
        if dims.iter().skip(1).all(|&d| d == 1) {
            return stored;
        }
        let fits = |t: GgmlType| {
            dims.first()
                .is_some_and(|row| row.is_multiple_of(t.block_values() as u64))
        };
        let eight = if fits(GgmlType::Q8_0) {
            GgmlType::Q8_0
        } else {
            GgmlType::F16
        };
        let sensitive = is_sensitive(name);
        if self.experts_only && !name.contains("_exps") {
            return if sensitive || self.spine_f16 {
                GgmlType::F16
            } else {
                eight
            };
        }
        if self.down_tier_up
            && name.contains("ffn_down_exps")
            && let Some(up) = next_up(self.bulk).filter(|&t| fits(t))
        {
            return up;
        }
        if sensitive {
            return match self.bulk {
                GgmlType::Q8_0
                | GgmlType::Q4_0
                | GgmlType::Q4_1
                | GgmlType::Q5_0
                | GgmlType::Q5_1 => GgmlType::F16,
                wide if !wide.is_quantized() => wide,
                _ => eight,
            };
        }
        if fits(self.bulk) {
            self.bulk
        } else {
            GgmlType::F16
        }
    }
}

/// Embeddings, head, speaker projections and routers.
fn is_sensitive(name: &str) -> bool {
    matches!(
        name,
        "output.weight" | "text_embd.weight" | "spk_lda.weight" | "spk_proj.weight"
    ) || name.starts_with("audio_embd.")
        || (name.starts_with("blk.")
            && (name.contains(".router_down.") || name.contains(".router_mlp")))
}

fn next_up(t: GgmlType) -> Option<GgmlType> {
    Some(match t {
        GgmlType::Q2K => GgmlType::Q3K,
        GgmlType::Q3K => GgmlType::Q4K,
        GgmlType::Q4K => GgmlType::Q5K,
        GgmlType::Q5K => GgmlType::Q6K,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use GgmlType::{Bf16, F16, F32, Iq4Nl, Q4_0, Q4K, Q5K, Q6K, Q8_0};

    const EXPERT: &str = "blk.3.ffn_down_exps.weight";
    const SPINE: &str = "blk.3.attn_q.weight";
    const ROUTER: &str = "blk.3.router_mlp0.weight";

    #[test]
    fn experts_get_the_type_and_the_spine_stays() {
        let p = Policy::recommended(Q4K);
        assert_eq!(p.storage_type(EXPERT, &[512, 256, 4], F16), Q4K);
        for name in [SPINE, ROUTER, "output.weight"] {
            assert_eq!(p.storage_type(name, &[256, 256], F16), F16);
        }
        assert_eq!(p.storage_type("blk.3.attn_norm.weight", &[256], F32), F32);
        assert_eq!(p.storage_type("blk.3.x", &[256, 1, 1], F32), F32);
        assert_eq!(p.storage_type(EXPERT, &[288, 256, 4], F16), F16);
        assert!(!p.starves_the_spine());
    }

    #[test]
    fn the_spine_without_f16_is_eight_bits() {
        let p = Policy {
            spine_f16: false,
            ..Policy::recommended(Q4K)
        };
        assert_eq!(p.storage_type(SPINE, &[256, 256], F16), Q8_0);
        assert_eq!(p.storage_type(SPINE, &[40, 256], F16), F16);
        assert_eq!(p.storage_type(ROUTER, &[256, 256], F16), F16);
    }

    #[test]
    fn everything_protects_by_name_and_by_row_length() {
        let p = Policy::everything(Q4K);
        assert!(p.starves_the_spine());
        assert_eq!(p.storage_type(SPINE, &[256, 256], F16), Q4K);
        assert_eq!(p.storage_type(SPINE, &[96, 256], F16), F16);
        for name in [ROUTER, "spk_lda.weight", "audio_embd.3.weight"] {
            assert_eq!(p.storage_type(name, &[96, 256], F16), Q8_0);
            assert_eq!(
                Policy::everything(Q4_0).storage_type(name, &[96, 256], F16),
                F16
            );
            assert_eq!(
                Policy::everything(Bf16).storage_type(name, &[96, 256], F16),
                Bf16
            );
        }
        assert_eq!(
            Policy::everything(Iq4Nl).storage_type(SPINE, &[96, 2], F16),
            Iq4Nl
        );
    }

    #[test]
    fn down_projections_one_tier_up() {
        let up = |bulk| Policy {
            down_tier_up: true,
            ..Policy::recommended(bulk)
        };
        assert_eq!(up(Q4K).storage_type(EXPERT, &[256, 2, 2], F16), Q5K);
        assert_eq!(
            up(Q4K).storage_type("blk.3.ffn_up_exps.weight", &[256, 2, 2], F16),
            Q4K
        );
        assert_eq!(up(Q6K).storage_type(EXPERT, &[256, 2, 2], F16), Q6K);
    }
}
