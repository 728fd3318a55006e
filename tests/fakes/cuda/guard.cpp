// A CUDA device that does nothing, for a build of PyTorch without CUDA: what autograd, autocast and fake tensors ask of
// a device before they work with tensors on it. No kernel runs on it, and it holds no memory.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <map>
#include <mutex>

namespace {

// Page-locked memory: the host's own, of which we remember where it is.
struct Pinned final : c10::Allocator {
  std::map<const char*, size_t> sizes;
  std::mutex mutex;

  static Pinned& get() {
    static Pinned pinned;
    return pinned;
  }
  static void release(void* start) {
    {
      std::lock_guard<std::mutex> held(get().mutex);
      get().sizes.erase(static_cast<char*>(start));
    }
    std::free(start);
  }
  c10::DataPtr allocate(size_t size) override {
    auto* start = static_cast<char*>(std::aligned_alloc(64, (size + 127) / 64 * 64));
    std::lock_guard<std::mutex> held(mutex);
    sizes[start] = size;
    return c10::DataPtr(start, start, &release, c10::Device(c10::DeviceType::CPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
  bool holds(const void* place) {
    std::lock_guard<std::mutex> held(mutex);
    auto after = sizes.upper_bound(static_cast<const char*>(place));
    if (after == sizes.begin()) return false;
    --after;
    return static_cast<const char*>(place) < after->first + after->second;
  }
};

} // namespace

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  bool isPinnedPtr(const void* place) const override { return Pinned::get().holds(place); }
  Allocator* getPinnedMemoryAllocator() const override { return &Pinned::get(); }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
};

REGISTER_CUDA_HOOKS(CUDAHooks);

} // namespace at

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct Guard : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Stream getStream(Device) const noexcept override { return stream(); }
  Stream getDefaultStream(Device) const override { return stream(); }
  Stream getNewStream(Device, int) const override { return stream(); }
  Stream exchangeStream(Stream) const noexcept override { return stream(); }
  bool isStreamCapturing(const Stream&) const override { return false; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}

 private:
  static Stream stream() noexcept { return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)); }
};

} // namespace

extern "C" void register_device() {
  static Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<int>(DeviceType::CUDA)].store(&guard);
}
