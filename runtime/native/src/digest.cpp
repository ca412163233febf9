#include "digest.h"

#include <sodium.h>

#include <algorithm>

#include "error.h"

namespace gemmill {
namespace {

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

}  // namespace

Digest sha256(std::string_view data) {
  Digest digest;
  crypto_hash_sha256(digest.data(), bytes_of(data), data.size());
  return digest;
}

std::string hex(const unsigned char* data, size_t bytes) {
  std::string text(2 * bytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), data, bytes);
  text.pop_back();
  return text;
}

std::string hex(const Digest& digest) { return hex(digest.data(), digest.size()); }

std::string from_base64(std::string_view text) {
  std::string data(text.size(), '\0');
  size_t size = 0;
  const char* end = nullptr;
  const int status = sodium_base642bin(reinterpret_cast<unsigned char*>(data.data()), data.size(), text.data(),
                                       text.size(), nullptr, &size, &end, sodium_base64_VARIANT_ORIGINAL);
  if (status != 0 || end != text.data() + text.size()) throw Invalid("the base64 is not in canonical form");
  data.resize(size);
  return data;
}

bool verifies(std::string_view public_key, std::string_view signature, std::string_view message) {
  return public_key.size() == crypto_sign_PUBLICKEYBYTES && signature.size() == crypto_sign_BYTES &&
         crypto_sign_verify_detached(bytes_of(signature), bytes_of(message), message.size(), bytes_of(public_key)) == 0;
}

}  // namespace gemmill
