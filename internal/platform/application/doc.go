// Package application holds the use cases of platform, each one business transaction. Its ports are
// implemented in infrastructure and connected in internal/app.
package application
