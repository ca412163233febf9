/// Runs a package of AOTInductor whose products are gemmill's operators, without Python.
///
/// Arguments: the package, a file of input tensors (torch.save of a list) and the file for the outputs. GEMMILL_PACKS
/// names the pack. libgemmill_torch, which is linked, registers the operators; nothing here calls it.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kRuns = 20;

std::vector<at::Tensor> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be opened");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const at::IValue list = torch::jit::pickle_load(bytes);
  std::vector<at::Tensor> tensors;
  for (const at::IValue& value : list.toListRef()) tensors.push_back(value.toTensor());
  return tensors;
}

void write(const std::string& path, const std::vector<at::Tensor>& tensors) {
  const std::vector<char> bytes = torch::jit::pickle_save(tensors);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error(path + " cannot be written");
}

void run(int count, char** arguments) {
  if (count != 4) throw std::runtime_error("usage: run_package PACKAGE INPUTS OUTPUTS");
  const c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader package(arguments[1]);
  const at::Device device(package.get_metadata().at("AOTI_DEVICE_KEY"));
  std::vector<at::Tensor> inputs = read(arguments[2]);
  for (at::Tensor& input : inputs) input = input.to(device);

  std::vector<at::Tensor> outputs = package.run(inputs);  // loads the kernels
  for (at::Tensor& output : outputs) output = output.cpu();
  write(arguments[3], outputs);

  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRuns; ++i) outputs = package.run(inputs);
  for (at::Tensor& output : outputs) output = output.cpu();  // waits for the GPU
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("%.3f ms a run\n", elapsed.count() / kRuns);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run(count, arguments);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
