//! From flags to a request, checked as far as flags alone allow.

use zonos_tts::{Limits, Quality, SamplerOptions, SpeakingRate, SpeechRequest};
use zonos2::limits::seconds_to_frames;

use super::{ConditioningArgs, LimitArgs, Rate, SamplingArgs};

/// The request of these flags, text and voice still empty.
pub(crate) fn request(
    conditioning: &ConditioningArgs,
    sampling: &SamplingArgs,
    limits: &LimitArgs,
) -> SpeechRequest {
    let mut request = prompt_request(conditioning);
    request.sampler = sampling.options();
    request.seed = sampling.seed;
    request.max_frames = sampling.max_frames.map(|n| n as usize);
    request.limits = Limits {
        frames_per_byte: (limits.frames_per_byte > 0).then_some(limits.frames_per_byte as usize),
        frame_floor: limits.frame_floor as usize,
        loop_frames: (limits.loop_breaker > 0.0)
            .then(|| seconds_to_frames(limits.loop_breaker).max(1)),
    };
    request
}

/// The part of a request that shapes the prompt.
pub(crate) fn prompt_request(conditioning: &ConditioningArgs) -> SpeechRequest {
    let mut request = SpeechRequest::new("");
    request.speaking_rate = match &conditioning.speaking_rate {
        Rate::None => None,
        Rate::Bucket(bucket) => Some(SpeakingRate::Bucket(*bucket)),
        Rate::Label(label) => Some(SpeakingRate::Label(label.clone())),
    };
    request.quality = match (&conditioning.quality, &conditioning.quality_values) {
        (Some(pairs), _) if pairs.0.is_empty() => Quality::Off,
        (Some(pairs), _) => {
            let buckets = pairs
                .0
                .iter()
                .map(|(name, bucket)| (name.clone(), Some(*bucket)));
            Quality::Buckets(buckets.collect())
        }
        (None, Some(pairs)) => Quality::Values(pairs.0.iter().cloned().collect()),
        (None, None) => Quality::Default,
    };
    request.accurate = !conditioning.expressive;
    request.clean_background = conditioning.clean_background;
    request
}

impl SamplingArgs {
    /// The sampler's options.
    pub(crate) fn options(&self) -> SamplerOptions {
        SamplerOptions {
            temperature: self.temperature as f32,
            top_k: i64::from(self.top_k),
            top_p: self.top_p as f32,
            min_p: self.min_p as f32,
            repetition_window: i64::from(self.repetition_window),
            repetition_penalty: self.repetition_penalty as f32,
            repetition_codebooks: i64::from(self.repetition_codebooks),
            greedy: self.greedy,
        }
    }
}
