"""The commands of gemmill, by what they are about."""
