//! Descript audio codec at 44.1 kHz: codes to waveform, whole or streamed.
