/// SHA-256 and Ed25519, from libsodium.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace gemmill {

using Digest = std::array<unsigned char, 32>;

Digest sha256(std::string_view data);

/// Bytes in lowercase hex.
std::string hex(const unsigned char* data, size_t bytes);
std::string hex(const Digest& digest);

/// The bytes of canonical base64; Invalid for anything else.
std::string from_base64(std::string_view text);

/// Whether the private key of a public key signed a message.
bool verifies(std::string_view public_key, std::string_view signature, std::string_view message);

}  // namespace gemmill
