//! Which model a checkpoint seems to hold.

use std::fmt;

use crate::{Checkpoint, Format};

/// The models of this project, as told from tensor names and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ModelKind {
    /// ZONOS2 backbone: text and voice to audio codes.
    Zonos2,
    /// Descript Audio Codec, in any of its layouts.
    Dac,
    /// ECAPA-TDNN speaker encoder.
    Ecapa,
    /// ZAC-1 decoder.
    ZacDecoder,
    /// ZAC-1 encoder (with its teacher).
    ZacEncoder,
    /// Wav2Vec2-BERT.
    W2vBert,
    /// None of these.
    Unknown,
}

impl ModelKind {
    pub(crate) fn guess(checkpoint: &Checkpoint) -> Self {
        let metadata = checkpoint.metadata();
        if metadata["format"]
            .as_str()
            .is_some_and(|f| f.starts_with("zac-1"))
        {
            match metadata["kind"].as_str() {
                Some("decoder") => return Self::ZacDecoder,
                Some("encoder") => return Self::ZacEncoder,
                _ => {}
            }
        }
        if checkpoint.format() == Format::Gguf {
            match metadata["general.architecture"].as_str() {
                Some("zonos2") => return Self::Zonos2,
                Some("dac") => return Self::Dac,
                Some("ecapa-tdnn") => return Self::Ecapa,
                _ => {}
            }
        }
        // A name counts wherever it stands after wrappers such as `module.` or `speaker_encoder.`.
        let any = |part: &str| {
            checkpoint.names().any(|name| {
                name.match_indices(part)
                    .any(|(at, _)| at == 0 || name.as_bytes()[at - 1] == b'.')
            })
        };
        if any("multi_embedder.embedders.") && any("multi_output.weight") {
            Self::Zonos2
        } else if any("codec.semantic_quantizer.") {
            if any("teacher.") || !any("codec.decoder.") {
                Self::ZacEncoder
            } else {
                Self::ZacDecoder
            }
        } else if any("encoder.layers.0.conv_module.depthwise_conv.weight")
            && any("feature_projection.")
        {
            Self::W2vBert
        } else if any("asp.tdnn.conv.weight") && any("mfa.conv.weight") {
            Self::Ecapa
        } else if any("decoder.model.0.") || any("decoder.block.0.conv_t1.") {
            Self::Dac
        } else {
            Self::Unknown
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Zonos2 => "ZONOS2 backbone",
            Self::Dac => "DAC codec",
            Self::Ecapa => "ECAPA-TDNN speaker encoder",
            Self::ZacDecoder => "ZAC-1 decoder",
            Self::ZacEncoder => "ZAC-1 encoder",
            Self::W2vBert => "Wav2Vec2-BERT",
            Self::Unknown => "unknown",
        })
    }
}
