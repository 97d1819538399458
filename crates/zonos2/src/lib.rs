//! ZONOS2 backbone: text and speaker to nine delayed DAC codebooks a frame.
