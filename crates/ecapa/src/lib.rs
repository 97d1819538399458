//! ECAPA-TDNN speaker encoder: 24 kHz speech to a voice vector.
