//! ZONOS2 backbone: text and speaker to nine delayed DAC codebooks a frame.

pub mod config;

pub use config::{Balancing, ConfigError, QualityFeature, Zonos2Config};
