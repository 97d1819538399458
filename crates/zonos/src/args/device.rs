//! Which device computes.

use clap::Args;

use burn::tensor::Device;

use crate::failure::Failure;

/// The device of the model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// Where the model runs: cpu (= flex), ndarray, cuda or cuda:N, wgpu, vulkan or vulkan:N or metal, as far as
    /// this build has them.
    #[arg(long, value_name = "D", default_value = "cpu", env = "ZONOS_DEVICE")]
    pub device: String,
}

/// How quantised weights are multiplied, where a command runs the backbone to speak.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct ActivationArgs {
    /// Keep activations unrounded where the weights are quantised (GGUF); slower. By default they are rounded
    /// to eight bits there, which the rounding of weights of six bits or fewer outweighs.
    #[arg(long)]
    pub exact: bool,
}

impl DeviceArgs {
    /// Opens the device. A name that this build does not know is a usage error.
    pub(crate) fn open(&self) -> Result<Device, Failure> {
        open(&self.device)
    }
}

/// The device of the codec, where a command runs both halves.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct CodecDeviceArgs {
    /// Where the codec runs [default: the same device].
    #[arg(long, value_name = "D", env = "ZONOS_CODEC_DEVICE")]
    pub codec_device: Option<String>,
}

impl CodecDeviceArgs {
    /// The device's name, `main` when none was given.
    pub(crate) fn name<'a>(&'a self, main: &'a DeviceArgs) -> &'a str {
        self.codec_device
            .as_deref()
            .filter(|name| !name.is_empty())
            .unwrap_or(&main.device)
    }

    /// Opens the device.
    pub(crate) fn open(&self, main: &DeviceArgs) -> Result<Device, Failure> {
        open(self.name(main))
    }
}

fn open(name: &str) -> Result<Device, Failure> {
    zonos_kernels::parse_device(name).map_err(|error| Failure::usage(error.to_string()))
}
