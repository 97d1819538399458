//! What can go wrong between a text and its audio.

use std::path::PathBuf;

use zonos_audio::decode::DecodeError;
use zonos_audio::reference::ReferenceError;
use zonos_dac::DacError;
use zonos_ecapa::EcapaError;
use zonos2::Zonos2Error;

/// Why a text was not spoken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TtsError {
    /// Nothing in the text can be spoken.
    #[error(
        "the text is blank: {bytes} bytes of nothing but white space, control and invisible characters; give a text to speak"
    )]
    BlankText {
        /// Bytes of the text.
        bytes: usize,
    },
    /// The prompt leaves no room for audio.
    #[error(
        "the text is too long: {bytes} bytes make a prompt of {rows} rows, and the model has {context} positions for prompt and audio together; split the text into parts of at most {fits} bytes"
    )]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Rows of the prompt, conditioning and silence included.
        rows: usize,
        /// Positions of the model (`max_seqlen`).
        context: usize,
        /// Bytes of text that leave room for their audio, spoken as fast as the model can.
        fits: usize,
    },
    /// A field of the request is outside its range.
    #[error("{field}: {problem}")]
    OutOfRange {
        /// The field, in the spelling of [`SpeechRequest`](crate::SpeechRequest).
        field: &'static str,
        /// What was expected and found.
        problem: String,
    },
    /// The request conditions on something this model does not have.
    #[error(transparent)]
    Conditioning(#[from] zonos2::PromptError),
    /// The voice does not fit the model.
    #[error(transparent)]
    Voice(#[from] zonos2::VoiceError),
    /// A voice could not be read or written.
    #[error(transparent)]
    VoiceFile(#[from] crate::VoiceFileError),
    /// A stored voice could not be had or kept.
    #[error(transparent)]
    Store(#[from] crate::StoreError),
    /// The pipeline was built without a speaker encoder.
    #[error(
        "cloning a voice needs a speaker encoder, and none was given; name one when the models are opened"
    )]
    NoSpeakerEncoder,
    /// The speaker encoder's vectors are not the backbone's.
    #[error(
        "the speaker encoder {encoder} makes vectors of {found} numbers, and the backbone takes {expected}; give the encoder that belongs to the backbone"
    )]
    EncoderWidth {
        /// Name of the encoder.
        encoder: String,
        /// Numbers in its vectors.
        found: usize,
        /// Numbers that the backbone takes.
        expected: usize,
    },
    /// A recording makes no voice.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The recording in a file makes no voice.
    #[error("{name}: {source}")]
    Recording {
        /// The file.
        name: String,
        /// Why.
        source: ReferenceError,
    },
    /// A recording could not be decoded.
    #[error(transparent)]
    Audio(#[from] DecodeError),
    /// The speaker encoder failed.
    #[error(transparent)]
    Encoder(#[from] EcapaError),
    /// Backbone and codec do not belong together.
    #[error("the codec does not fit the backbone: {0}")]
    Mismatch(String),
    /// The model ended the speech before its first frame.
    #[error(
        "the model ended the speech before its first frame (seed {seed}); nothing to play: try another seed or a longer text"
    )]
    NoAudio {
        /// The seed in use.
        seed: u64,
    },
    /// The caller asked to stop.
    #[error("stopped by the caller after {frames} frames")]
    Stopped {
        /// Frames made until then.
        frames: usize,
    },
    /// The backbone failed.
    #[error(transparent)]
    Backbone(#[from] Zonos2Error),
    /// The codec failed.
    #[error(transparent)]
    Codec(#[from] DacError),
    /// A checkpoint could not be opened.
    #[error(transparent)]
    Checkpoint(#[from] zonos_checkpoint::CheckpointError),
    /// The codes of a generation are none of the codec's.
    #[error(transparent)]
    Codes(#[from] zonos_audio::CodesError),
    /// The demo model could not be written out.
    #[error("{}: cannot write the demo model: {source}", path.display())]
    Demo {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl TtsError {
    /// Whether the request is to blame, so that trying it again cannot help.
    ///
    /// A command line answers these with "usage", a server with status 400.
    pub fn is_request_error(&self) -> bool {
        matches!(
            self,
            Self::BlankText { .. }
                | Self::TextTooLong { .. }
                | Self::OutOfRange { .. }
                | Self::Conditioning(_)
                | Self::Voice(_)
                | Self::Reference(_)
                | Self::Recording { .. }
                | Self::Audio(_)
        )
    }
}
