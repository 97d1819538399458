//! Layers shared by the zonos-burn models: norms, rotary embedding, Snake, weight-normed convolutions, taps.
