//! `SpeechBackend` for Flex.

use burn::backend::Flex;

use crate::SpeechBackend;

impl SpeechBackend for Flex {}
