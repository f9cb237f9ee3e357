// Package domain holds the rules of platform: system cards, decisions and override patterns, failure clusters,
// memories, curation decisions, and agent tasks. It knows neither the database nor events.
package domain
