"""Studies (TOML) and published reference values with their source; installed as `ctmc.data`."""
