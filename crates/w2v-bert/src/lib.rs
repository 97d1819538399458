//! Wav2Vec2-BERT 2.0.
