//! Wav2Vec2-BERT 2.0: 16 kHz speech to semantic features, 50 a second.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use zonos_nn::Tap;
//! use zonos_w2v_bert::Teacher;
//!
//! let teacher = Teacher::load("models/w2v-bert-2.0", &Device::flex())?; // or a ZAC-1 encoder file
//! # let samples = vec![0.0; 48_000];
//! let features = teacher.features(&samples)?; // mono, 16 kHz
//! let hidden = teacher.forward(&features, 16, &mut Tap::off())?; // [tokens, 1024], after layer 16
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Samples become the log-mel filterbank that Kaldi makes, normalised over the clip and stacked two
//! by two ([`Teacher::features`]); conformer layers follow, of which any may be the last
//! ([`Teacher::forward`]). Attention sees the whole clip in both directions, so clips are not
//! streamed: long recordings are cut into pieces by whoever uses the model.
//!
//! Modules are named as in the published checkpoint. Matrices stay in their file's dtype, bf16 in
//! ZAC-1's files; everything is computed in f32 and differentiable.
//!
//! Sources: Barrault et al. 2023, arXiv:2312.05187 (the model), Gulati et al. 2020, arXiv:2005.08100
//! (the layer), Shaw et al. 2018, arXiv:1803.02155 (distances).

mod config;
mod error;
mod features;
mod front_end;
mod load;
mod model;

pub use config::TeacherConfig;
pub use error::TeacherError;
pub use features::Features;
pub use load::{TeacherSource, tensor_specs};
pub use model::{
    ConvModule, DepthwiseConv, DistanceEmbedding, Encoder, FeatureProjection, FeedForward, Layer,
    SelfAttention, Teacher,
};
