//! From flags to a request, checked as far as flags alone allow.

use zonos_tts::{
    Limits, Quality, SamplerOptions, SpeakerVector, SpeakingRate, SpeechRequest,
};

use super::{ConditioningArgs, LimitArgs, Rate, SamplingArgs, VoiceArgs};
use crate::failure::Failure;

/// The request of these flags, its text still empty. Reads the speaker vector's file.
pub fn request(
    voice: &VoiceArgs,
    conditioning: &ConditioningArgs,
    sampling: &SamplingArgs,
    limits: &LimitArgs,
) -> Result<SpeechRequest, Failure> {
    let mut request = prompt_request(voice, conditioning)?;
    request.sampler = sampling.options();
    request.greedy = sampling.greedy;
    request.seed = sampling.seed;
    request.max_frames = sampling.max_frames.map(|n| n as usize);
    request.limits = Some(Limits {
        frames_per_byte: limits.frames_per_byte as usize,
        floor: limits.frame_floor as usize,
        loop_seconds: limits.loop_breaker,
    });
    Ok(request)
}

/// The part of a request that shapes the prompt.
pub fn prompt_request(
    voice: &VoiceArgs,
    conditioning: &ConditioningArgs,
) -> Result<SpeechRequest, Failure> {
    let mut request = SpeechRequest::new("");
    request.voice = voice.load()?;
    request.speaking_rate = match &conditioning.speaking_rate {
        Rate::None => None,
        Rate::Bucket(bucket) => Some(SpeakingRate::Bucket(*bucket)),
        Rate::Label(label) => Some(SpeakingRate::Label(label.clone())),
    };
    request.quality = match (&conditioning.quality, &conditioning.quality_values) {
        (Some(pairs), _) if pairs.0.is_empty() => Quality::None,
        (Some(pairs), _) => Quality::Buckets(pairs.0.clone()),
        (None, Some(pairs)) => Quality::Values(pairs.0.clone()),
        (None, None) => Quality::Default,
    };
    request.accurate = !conditioning.expressive;
    request.clean_background = conditioning.clean_background;
    Ok(request)
}

impl SamplingArgs {
    /// The sampler's options.
    pub fn options(&self) -> SamplerOptions {
        SamplerOptions {
            temperature: self.temperature as f32,
            top_k: self.top_k as i64,
            top_p: self.top_p as f32,
            min_p: self.min_p as f32,
            repetition_window: i64::from(self.repetition_window),
            repetition_penalty: self.repetition_penalty as f32,
            repetition_codebooks: i64::from(self.repetition_codebooks),
        }
    }
}
